"""The Isaac Lab config classes: parentage, defaults, and what reaches the algorithm."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

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
from omegaconf import OmegaConf
from rsl_rl.algorithms import Distillation
from rsl_rl.utils import resolve_class
from support.helpers import CNN, make_obs

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from rsl_tbptt.checkpoints.describing import read_agent_config
from rsl_tbptt.integrations.isaaclab import (
    TbpttCnnRnnModelCfg,
    TbpttDistillationAlgorithmCfg,
    TbpttPpoAlgorithmCfg,
    TbpttTeacherCfg,
)
from rsl_tbptt.models import CNNRNNModel, SelectedTeachers
from rsl_tbptt.tools.doctor import install

TAKEN_BY_RSL_RL = ("rnd_cfg", "symmetry_cfg", "share_cnn_encoders")
"""Fields that rsl_rl reads before the options are made."""

WITHOUT_ISAACLAB = """
import sys
sys.modules["isaaclab"] = None
import rsl_tbptt.integrations.isaaclab
"""


def handed_on(cfg):
    """Return the class and the keyword arguments that rsl_rl makes of a config."""
    return resolve_class(to_dict(cfg))


def test_stands_where_isaaclab_expects_its_own():
    assert isinstance(TbpttDistillationAlgorithmCfg(), RslRlDistillationAlgorithmCfg)


def test_class_name_resolves_to_the_algorithm():
    algorithm, _ = handed_on(TbpttDistillationAlgorithmCfg())
    assert algorithm is TbpttDistillation


def test_isaaclabs_own_class_name_resolves_to_another_algorithm():
    algorithm, _ = handed_on(TbpttDistillationAlgorithmCfg(class_name="Distillation"))
    assert algorithm is not TbpttDistillation


def test_every_field_is_an_option_of_the_algorithm():
    _, arguments = handed_on(TbpttDistillationAlgorithmCfg())
    assert DistillationOptions.parse(arguments).gradient_length == 15


def test_a_field_the_algorithm_does_not_know_is_refused():
    _, arguments = handed_on(TbpttDistillationAlgorithmCfg())
    with pytest.raises(ValueError, match="did you mean 'gradient_length'"):
        DistillationOptions.parse({**arguments, "gradient_lenght": 8})


def test_defaults_are_the_algorithms_own():
    _, arguments = handed_on(TbpttDistillationAlgorithmCfg())
    options = DistillationOptions()
    assert arguments == {name: getattr(options, name) for name in arguments}


def test_a_value_of_the_config_reaches_the_options():
    cfg = TbpttDistillationAlgorithmCfg(gradient_length=7, update_length=3, loss_type="kl")
    options = DistillationOptions.parse(handed_on(cfg)[1])
    assert (options.gradient_length, options.update_length, options.loss_type) == (7, 3, "kl")


def test_slices_and_functions_come_through_a_config_and_its_file(tmp_path):
    slices = [{"loss": "mse", "actions": [0, 1]}, {"loss": "bce", "actions": [1, 2], "coef": 0.5}]
    cfg = TbpttDistillationAlgorithmCfg(loss_type=slices, imitation_weight=make_obs)
    options = DistillationOptions.parse(handed_on(cfg)[1])
    assert options.loss_type == slices
    assert options.imitation_weight in (make_obs, "support.helpers:make_obs")
    dump_yaml(str(tmp_path / "agent.yaml"), cfg)
    dumped = yaml.safe_load((tmp_path / "agent.yaml").read_text())
    assert (dumped["loss_type"], dumped["imitation_weight"]) == (slices, "support.helpers:make_obs")


def test_every_option_of_rsl_rl_that_isaaclab_offers_is_kept():
    ours = set(handed_on(TbpttDistillationAlgorithmCfg())[1])
    stock = set(handed_on(RslRlDistillationAlgorithmCfg())[1])
    assert stock <= ours
    assert stock <= set(inspect.signature(Distillation.__init__).parameters)


@pytest.mark.parametrize(
    ("cfg", "options", "stock"),
    [
        (TbpttDistillationAlgorithmCfg, DistillationOptions, RslRlDistillationAlgorithmCfg),
        (TbpttPpoAlgorithmCfg, PpoOptions, RslRlPpoAlgorithmCfg),
    ],
)
def test_a_config_adds_nothing_but_its_name(cfg, options, stock):
    own = {field.name for field in dataclasses.fields(options)}
    inherited = {field.name for field in dataclasses.fields(stock)}
    assert set(handed_on(cfg())[1]) == (own | inherited) - {"class_name"}
    for name in inherited - own - {"class_name"}:
        assert getattr(cfg(), name) == getattr(stock(), name)


@pytest.mark.parametrize("cfg", [TbpttDistillationAlgorithmCfg, TbpttPpoAlgorithmCfg])
def test_a_config_may_be_changed_until_the_algorithm_checks_it(cfg):
    options = DistillationOptions if cfg is TbpttDistillationAlgorithmCfg else PpoOptions
    cfg = cfg()
    cfg.gradient_length = 0
    arguments = handed_on(cfg)[1]
    for name in TAKEN_BY_RSL_RL:
        arguments.pop(name, None)
    with pytest.raises(ValueError, match="gradient_length is 0, expected an integer of at least 1"):
        options.parse(arguments)


def test_an_old_name_is_still_a_field():
    cfg = TbpttDistillationAlgorithmCfg(num_env_chunks=4)
    with pytest.warns(DeprecationWarning, match="num_env_chunks is now num_micro_batches"):
        options = DistillationOptions.parse(handed_on(cfg)[1])
    assert options.num_micro_batches == 4


def test_without_isaaclab_the_error_names_the_fix():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_ISAACLAB], capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    assert install("isaaclab") in result.stderr


def test_the_ppo_config_hands_on_the_algorithms_own_defaults():
    cfg = TbpttPpoAlgorithmCfg()
    assert isinstance(cfg, RslRlPpoAlgorithmCfg)
    algorithm, arguments = handed_on(cfg)
    assert algorithm is TbpttPPO
    for name in TAKEN_BY_RSL_RL:
        arguments.pop(name)
    assert PpoOptions.parse(arguments) == PpoOptions()


def test_the_model_of_a_config_sees_and_remembers():
    cfg = TbpttCnnRnnModelCfg(
        cnn_cfg=TbpttCnnRnnModelCfg.CNNCfg(activation="elu", **CNN),
        hidden_dims=[8],
        activation="elu",
        rnn_type="gru",
        image_scale=0.5,
    )
    model_class, options = handed_on(cfg)
    old = {"stochastic", "init_noise_std", "noise_std_type", "state_dependent_std"}  # Isaac Lab's
    options = {name: value for name, value in options.items() if name not in old}
    groups = {"student": ["policy", "camera", "depth"]}
    model = model_class(make_obs(2, images=True), groups, "student", 3, **options)
    assert isinstance(model, CNNRNNModel)
    assert (model.cell.mode, model.cell.hidden_size, model.image_scale) == ("GRU", 256, 0.5)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "distillation.md"


def teachers_of_the_page():
    """Return the config of several teachers that the page prints."""
    section = PAGE.read_text().split("## Several teachers\n")[1]
    block = section.split("```python\n")[1].split("```")[0]
    names = {}
    exec(compile(block, PAGE.name, "exec"), names)
    return names["teacher"]


@configclass
class SkillsCfg(RslRlDistillationRunnerCfg):
    """Of a task whose teachers are several."""

    student = RslRlMLPModelCfg(hidden_dims=[8], activation="elu")
    teacher = teachers_of_the_page()
    algorithm = TbpttDistillationAlgorithmCfg()


def test_several_teachers_pass_through_isaaclabs_script(tmp_path):
    """Overrides, what it does for older releases of rsl_rl, and the file that it writes."""
    cfg = SkillsCfg(obs_groups={"student": ["policy"], "teacher": ["state"]})
    overrides: Any = OmegaConf.to_container(OmegaConf.create(cfg.to_dict()))
    climb = overrides["teacher"]["teachers"]["climb"]
    climb["checkpoint"], climb["cfg"]["rnn_hidden_dim"] = "other.pt", 7
    cfg.from_dict(overrides)
    cfg = handle_deprecated_rsl_rl_cfg(cfg, "5.5.1")
    dump_yaml(str(tmp_path / "agent.yaml"), cfg)
    model_class, options = handed_on(cfg.teacher)
    obs = make_obs(2)
    obs["skill"] = torch.tensor([[1.0], [0.0]])
    teachers = model_class(obs, cfg.obs_groups, "teacher", 3, **options)
    assert isinstance(teachers, SelectedTeachers)
    assert teachers.names == ("walk", "climb")
    assert teachers.obs_groups == ["state", "policy"]
    assert teachers.teachers["climb"].rnn.rnn.hidden_size == 7
    written = read_agent_config(tmp_path / "agent.yaml")
    assert written["teacher"]["teachers"]["climb"]["checkpoint"] == "other.pt"


def test_the_config_of_a_model_is_left_whole_for_other_uses():
    actor = RslRlMLPModelCfg(hidden_dims=[8], activation="elu")
    TbpttTeacherCfg(cfg=actor)
    assert "stochastic" in vars(actor)
