"""The Isaac Lab config classes: base classes, defaults, and the algorithm's arguments."""

import dataclasses
import importlib
from functools import reduce
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import isaaclab_tasks  # noqa: F401
import torch
import yaml
from isaaclab.utils import configclass, to_dict
from isaaclab.utils.io import dump_yaml
from isaaclab_rl.rsl_rl import (
    RslRlDistillationAlgorithmCfg,
    RslRlDistillationRunnerCfg,
    RslRlMLPModelCfg,
    RslRlPpoAlgorithmCfg,
    handle_deprecated_rsl_rl_cfg,
)
from isaaclab_tasks.utils import resolve_task_config
from omegaconf import OmegaConf
from rsl_rl.models import MLPModel
from rsl_rl.utils import resolve_class
from support.helpers import CNN, absolute_error, make_obs

import rsl_tbptt_tasks.isaaclab  # noqa: F401
from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.imitation import build_teacher
from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from rsl_tbptt.files import read_config
from rsl_tbptt.integrations.isaaclab import (
    TbpttCnnRnnModelCfg,
    TbpttControllerCfg,
    TbpttDistillationAlgorithmCfg,
    TbpttPpoAlgorithmCfg,
    TbpttTeacherCfg,
    TbpttTeachersCfg,
)
from rsl_tbptt.models import CNNRNNModel, SelectedTeachers
from rsl_tbptt.models.controller import with_controllers
from rsl_tbptt.tools.platforms import Trained, load_platform

TAKEN_BY_RSL_RL = ("rnd_cfg", "symmetry_cfg", "share_cnn_encoders")
"""Fields that rsl_rl reads before the options are built."""


def handed_on(cfg):
    """Return the class and the keyword arguments that rsl_rl gets from a config."""
    return resolve_class(to_dict(cfg))


@pytest.mark.parametrize(
    ("cfg", "stock", "algorithm", "options"),
    [
        (
            TbpttDistillationAlgorithmCfg,
            RslRlDistillationAlgorithmCfg,
            TbpttDistillation,
            DistillationOptions,
        ),
        (TbpttPpoAlgorithmCfg, RslRlPpoAlgorithmCfg, TbpttPPO, PpoOptions),
    ],
)
def test_a_config_is_isaaclabs_own_with_the_options_of_the_algorithm(
    cfg, stock, algorithm, options
):
    assert issubclass(cfg, stock)
    found, arguments = handed_on(cfg())
    assert found is algorithm
    assert {field.name for field in dataclasses.fields(stock)} - {"class_name"} <= set(arguments)
    for name in TAKEN_BY_RSL_RL:
        arguments.pop(name, None)
    assert options.parse(arguments) == options()


HEADS = "{'velocity': {'target': 'policy', 'columns': [0, 1], 'coef': 0.5, 'loss': 'a:b'}}"
TEACHER = "{'class_name': 'MLPModel'}"


@pytest.mark.parametrize("task", ["Tbptt-Cartpole-Occluded", "Isaac-Velocity-Flat-AnymalD"])
@pytest.mark.parametrize(
    ("kind", "options", "algorithm", "given"),
    [
        ("distillation_recurrent", DistillationOptions, TbpttDistillation, {"tail": "drop"}),
        (
            "recurrent",
            PpoOptions,
            TbpttPPO,
            {"max_grad_norm": "null", "teacher_cfg": TEACHER, "teacher_coef": 1},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'RigidBodyMaterialCfg' is deprecated:DeprecationWarning")
def test_options_of_the_command_line_reach_the_algorithm_also_in_a_stock_config(
    task, kind, options, algorithm, given
):
    given = {**given, "gradient_length": "6", "auxiliary": HEADS}
    given["class_name"] = f"rsl_tbptt.algorithms:{algorithm.__name__}"
    words = [f"agent.algorithm.{name}={value}" for name, value in given.items()]
    agent = f"rsl_rl_{kind}_cfg_entry_point"
    _, cfg = resolve_task_config(task, agent, overrides=["physics=newton_mjwarp", *words])
    found, arguments = handed_on(cfg.algorithm)
    assert found is algorithm
    for name in ("class_name", *TAKEN_BY_RSL_RL):
        arguments.pop(name, None)
    parsed = options.parse(arguments)
    assert (parsed.gradient_length, parsed.auxiliary) == (6, eval(HEADS))
    if options is PpoOptions:
        assert (parsed.max_grad_norm, parsed.teacher_cfg) == (None, eval(TEACHER))
    else:
        assert parsed.tail == "drop"


def test_functions_survive_a_config_and_its_file(tmp_path):
    cfg = TbpttDistillationAlgorithmCfg(loss_type=absolute_error)
    given = {name: v for name, v in handed_on(cfg)[1].items() if name not in TAKEN_BY_RSL_RL}
    options = DistillationOptions.parse(given)
    assert options.loss_type in (absolute_error, "support.helpers:absolute_error")
    dump_yaml(str(tmp_path / "agent.yaml"), cfg)
    dumped = yaml.safe_load((tmp_path / "agent.yaml").read_text())
    assert dumped["loss_type"] == "support.helpers:absolute_error"


def test_the_model_of_a_config_has_a_cnn_and_memory():
    cfg = TbpttCnnRnnModelCfg(
        cnn_cfg=TbpttCnnRnnModelCfg.CNNCfg(activation="elu", **CNN),
        hidden_dims=[8],
        activation="elu",
        rnn_type="sru",
        image_scale=0.5,
    )
    model_class, options = handed_on(cfg)
    old = {"stochastic", "init_noise_std", "noise_std_type", "state_dependent_std"}  # Isaac Lab's
    options = {name: value for name, value in options.items() if name not in old}
    groups = {"student": ["policy", "camera", "depth"]}
    model = model_class(make_obs(2, images=True), groups, "student", 3, **options)
    assert isinstance(model, CNNRNNModel)
    assert (model.cell.mode, model.cell.hidden_size, model.image_scale) == ("SRU", 256, 0.5)


GAUSSIAN = RslRlMLPModelCfg.GaussianDistributionCfg(init_std=1.0)
MLP = RslRlMLPModelCfg(hidden_dims=[8], activation="elu", distribution_cfg=GAUSSIAN)
TEACHERS: Any = TbpttTeachersCfg(
    selector="skill",
    teachers={
        "walk": TbpttTeacherCfg(cfg=MLP, checkpoint="walk/model_1499.pt", obs_groups=["state"]),
        "climb": TbpttTeacherCfg(cfg=MLP, checkpoint="climb/model_2999.pt", obs_groups=["policy"]),
    },
)


@configclass
class SkillsCfg(RslRlDistillationRunnerCfg):
    """The agent's config of a task with several teachers."""

    student = RslRlMLPModelCfg(hidden_dims=[8], activation="elu")
    teacher = TEACHERS
    algorithm = TbpttDistillationAlgorithmCfg()


def through_isaaclabs_script(cfg, **teacher):
    """Return a config after overrides of its teacher, and changes for older releases of rsl_rl."""
    overrides: Any = OmegaConf.to_container(OmegaConf.create(cfg.to_dict()))
    for name, value in teacher.items():
        *path, last = name.split("__")
        reduce(dict.__getitem__, path, overrides["teacher"])[last] = value
    cfg.from_dict(overrides)
    return handle_deprecated_rsl_rl_cfg(cfg, "5.5.1")


def test_several_teachers_pass_through_isaaclabs_script(tmp_path):
    """This covers overrides, changes for older releases of rsl_rl, and the file that it writes."""
    cfg = SkillsCfg(obs_groups={"student": ["policy"], "teacher": ["state"]})
    climb = {"teachers__climb__checkpoint": "other.pt", "teachers__climb__cfg__hidden_dims": [7]}
    cfg = through_isaaclabs_script(cfg, **climb)
    dump_yaml(str(tmp_path / "agent.yaml"), cfg)
    model_class, options = handed_on(cfg.teacher)
    obs = make_obs(2)
    obs["skill"] = torch.tensor([[1.0], [0.0]])
    teachers = model_class(obs, cfg.obs_groups, "teacher", 3, **options)
    assert isinstance(teachers, SelectedTeachers)
    assert [*teachers.teachers] == ["walk", "climb"]
    assert teachers.obs_groups == ["state", "policy"]
    networks: Any = teachers.teachers
    assert [each.mlp[0].out_features for each in networks.values()] == [8, 7]
    written = read_config(tmp_path / "agent.yaml")
    assert written["teacher"]["teachers"]["climb"]["checkpoint"] == "other.pt"


@configclass
class PlaybackCfg(TbpttControllerCfg):
    """A controller with an argument."""

    class_name: str = "support.controllers:Playback"
    actions: tuple = (0.1,)


def test_a_controller_passes_through_isaaclabs_script():
    teacher: Any = PlaybackCfg()
    cfg = SkillsCfg(obs_groups={"student": ["policy"]}, teacher=teacher)
    cfg = through_isaaclabs_script(cfg, actions=(0.7,))
    env: Any = SimpleNamespace(num_envs=2)
    model_class, options = resolve_class(with_controllers(to_dict(cfg.teacher), env))
    obs = make_obs(2)
    model = model_class(obs, cfg.obs_groups, "teacher", 1, **options)
    assert model(obs).flatten().tolist() == pytest.approx([0.7] * 2)


@pytest.mark.parametrize(("given", "kind"), [(MLP, MLPModel), (TEACHERS, SelectedTeachers)])
def test_ppo_takes_the_config_of_its_teacher(given, kind):
    cfg = TbpttPpoAlgorithmCfg(teacher_cfg=given, teacher_coef=0.5)
    obs = make_obs(2)
    obs["skill"] = torch.tensor([[1.0], [0.0]])
    env: Any = SimpleNamespace(num_actions=3)
    runner = {"obs_groups": {"teacher": ["state"]}}
    teacher = build_teacher(obs, env, runner, handed_on(cfg)[1]["teacher_cfg"], "cpu")
    assert isinstance(teacher, kind)
    assert "stochastic" in vars(given)


def test_the_tools_read_agents_also_without_isaac_labs_shim_for_old_configs(monkeypatch):
    module, shim = importlib.import_module("isaaclab_rl.rsl_rl"), "handle_deprecated_rsl_rl_cfg"
    load = module.__getattr__  # lazily

    def without_shim(name):  # as in Isaac Lab 3.1
        return load("gone" if name == shim else name)

    monkeypatch.delattr(module, shim)
    monkeypatch.setattr(module, "__getattr__", without_shim)
    trained = Trained("Tbptt-Cartpole-Occluded", "rsl_rl_cfg_entry_point")
    assert load_platform("isaaclab").registered_agent(trained)["class_name"] == "OnPolicyRunner"
