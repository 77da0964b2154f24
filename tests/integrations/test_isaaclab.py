"""The Isaac Lab config classes: base classes, defaults, and the algorithm's arguments."""

import dataclasses
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import isaaclab_tasks  # noqa: F401
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
from rsl_tbptt.integrations.isaaclab import (
    TbpttCnnRnnModelCfg,
    TbpttControllerCfg,
    TbpttDistillationAlgorithmCfg,
    TbpttPpoAlgorithmCfg,
)
from rsl_tbptt.models import CNNRNNModel
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


@configclass
class PlaybackCfg(TbpttControllerCfg):
    """A controller with an argument."""

    class_name: str = "support.controllers:Playback"
    actions: tuple = (0.1,)


@configclass
class ControlledCfg(RslRlDistillationRunnerCfg):
    """The agent's config of a task whose teacher is a controller."""

    student = RslRlMLPModelCfg(hidden_dims=[8], activation="elu")
    teacher: Any = PlaybackCfg()
    algorithm = TbpttDistillationAlgorithmCfg()


def test_a_controller_passes_through_isaaclabs_script():
    """This covers overrides, and changes for older releases of rsl_rl."""
    cfg = ControlledCfg(obs_groups={"student": ["policy"]})
    overrides: Any = OmegaConf.to_container(OmegaConf.create(cfg.to_dict()))
    overrides["teacher"]["actions"] = (0.7,)
    cfg.from_dict(overrides)
    cfg = handle_deprecated_rsl_rl_cfg(cfg, "5.5.1")
    env: Any = SimpleNamespace(num_envs=2)
    model_class, options = resolve_class(with_controllers(to_dict(cfg.teacher), env))
    obs = make_obs(2)
    model = model_class(obs, cfg.obs_groups, "teacher", 1, **options)
    assert model(obs).flatten().tolist() == pytest.approx([0.7] * 2)


def test_ppo_takes_the_config_of_its_teacher():
    model: Any = MLP
    cfg = TbpttPpoAlgorithmCfg(teacher_cfg=model, teacher_coef=0.5)
    env: Any = SimpleNamespace(num_actions=3)
    runner = {"obs_groups": {"teacher": ["state"]}}
    teacher = build_teacher(make_obs(2), env, runner, handed_on(cfg)[1]["teacher_cfg"], "cpu")
    assert isinstance(teacher, MLPModel)
    assert "stochastic" in vars(MLP)


def test_the_tools_read_agents_also_without_isaac_labs_shim_for_old_configs(monkeypatch):
    module, shim = importlib.import_module("isaaclab_rl.rsl_rl"), "handle_deprecated_rsl_rl_cfg"
    load = module.__getattr__  # lazily

    def without_shim(name):  # as in Isaac Lab 3.1
        return load("gone" if name == shim else name)

    monkeypatch.delattr(module, shim)
    monkeypatch.setattr(module, "__getattr__", without_shim)
    trained = Trained("Tbptt-Cartpole-Occluded", "rsl_rl_cfg_entry_point")
    assert load_platform("isaaclab").registered_agent(trained)["class_name"] == "OnPolicyRunner"
