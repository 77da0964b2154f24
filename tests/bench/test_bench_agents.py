"""Agents of the benchmark are what Isaac Lab's and rsl_rl's own classes say."""

import json
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

import pytest
from rsl_rl.models import MLPModel, RNNModel
from torch import nn

from rsl_tbptt.bench.agents import default_distillation, described
from rsl_tbptt.bench.case import Case, build
from rsl_tbptt.bench.speed import check_equal

# Isaac Lab's configs warn of what Isaac Lab itself will change.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
UR10E = "IsaacContrib-Deploy-GearAssembly-UR10e-2F140"
ANYMAL = "Isaac-Velocity-Flat-AnymalD"
SEEN = {"policy": 48, "num_actions": 12}
SMALL: dict[str, Any] = {"num_envs": 4, "num_steps": 6, "gradient_length": 6, "num_mini_batches": 2}


@pytest.fixture(scope="module")
def _isaac_lab():
    pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")


@pytest.fixture(scope="module")
def gear(_isaac_lab):
    """The UR10e's gear assembly."""
    widths = f"{UR10E}-ROS-Inference"
    return described(task=UR10E, agent="rsl_rl_cfg_entry_point", widths=widths)


@pytest.fixture(scope="module")
def anymal(_isaac_lab):
    """ANYmal-D's recurrent distillation."""
    key = "rsl_rl_distillation_recurrent_cfg_entry_point"
    return described(task=ANYMAL, agent=key, widths=SEEN)


def small(case):
    models = {role: options | {"hidden_dims": [8]} for role, options in case.models.items()}
    return replace(case, **SMALL, rnn_hidden_dim=8, models=models, done_rate=0.2)


def widths(mlp):
    return [layer.out_features for layer in mlp if isinstance(layer, nn.Linear)]


@pytest.mark.usefixtures("_isaac_lab")
def test_every_agent_with_memory_that_isaac_lab_registers_is_a_row():
    import gymnasium as gym
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry

    from scripts.benchmark.rows import FILE, yaml

    entries = yaml.safe_load(FILE.with_name("agents.yaml").read_text())["agents"]
    listed = {
        gym.spec(entry["task"]).kwargs[entry["agent"]] for entry in entries if "task" in entry
    }
    found = set()
    for task, spec in list(gym.registry.items()):
        for key, entry in spec.kwargs.items():
            if key.startswith("rsl_rl") and str(entry).startswith("isaaclab_tasks."):
                cfg = load_cfg_from_registry(task, key)
                roles = [getattr(cfg, role, None) for role in ("actor", "student")]
                if any(hasattr(role, "rnn_type") for role in roles):
                    found.add(entry)
    assert len(found) == 5
    assert listed == found


def test_an_agent_is_read_from_its_config_classes(gear):
    path = "isaaclab_tasks.contrib.deploy.gear_assembly.config.ur_10e.agents.rsl_rl_ppo_cfg"
    cfg = import_module(path).UR10GearAssemblyRNNPPORunnerCfg()
    assert (gear.algorithm, gear.num_envs, gear.num_actions) == ("ppo", 1024, 6)
    assert gear.num_steps == gear.gradient_length == cfg.num_steps_per_env == 512
    assert gear.num_learning_epochs == cfg.algorithm.num_learning_epochs == 8
    assert gear.num_mini_batches == cfg.algorithm.num_mini_batches == 16
    assert gear.rnn_num_layers == cfg.actor.rnn_num_layers == 2
    assert gear.settings["desired_kl"] == cfg.algorithm.desired_kl
    assert gear.obs_dims == {"policy": 19, "critic": 42}
    assert gear.done_rate == pytest.approx(4 / 120 / 6.66)
    algorithm = build(replace(gear, num_envs=32, num_steps=2, gradient_length=2), "rsl_rl")
    assert algorithm.entropy_coef == cfg.algorithm.entropy_coef == 0.0
    assert algorithm.critic.obs_dim == 42
    assert algorithm.critic.rnn.rnn.num_layers == 2
    assert type(algorithm.actor.distribution).__name__ == "HeteroscedasticGaussianDistribution"


def test_recurrent_distillation_keeps_its_recurrent_teacher(anymal):
    assert (anymal.num_envs, anymal.num_steps, anymal.gradient_length) == (4096, 120, 15)
    assert anymal.num_learning_epochs == 2
    algorithm = build(replace(anymal, num_envs=4), "rsl_tbptt")
    assert type(algorithm.teacher) is type(algorithm.student) is RNNModel
    assert widths(algorithm.student.mlp) == [128, 128, 128, 12]


@pytest.mark.usefixtures("_isaac_lab")
def test_the_widths_of_anymal_are_those_of_its_terms():
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry

    policy = load_cfg_from_registry(ANYMAL, "env_cfg_entry_point").observations.policy
    terms = {name for name, term in vars(policy).items() if hasattr(term, "func")}
    of_joints = {"joint_pos", "joint_vel", "actions"}
    of_the_base = {"base_lin_vel", "base_ang_vel", "projected_gravity", "velocity_commands"}
    assert terms == of_joints | of_the_base
    assert 12 * len(of_joints) + 3 * len(of_the_base) == SEEN["policy"]


@pytest.mark.usefixtures("_isaac_lab")
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"agent": "rsl_rl_cfg_entry_point", "widths": SEEN}, "agent is rsl_rl_cfg_entry_point of"),
        ({"agent": "rsl_rl_recurrent_cfg_entry_point", "widths": ANYMAL}, "spaces of Isaac-Vel"),
    ],
)
def test_what_cannot_be_read_is_refused(entry, message):
    with pytest.raises(ValueError, match=f"^{message}.*, expected"):
        described(task=ANYMAL, **entry)


def test_the_default_is_that_of_rsl_rls_signatures():
    case = default_distillation(num_envs=4, num_steps=24)
    assert (case.gradient_length, case.num_learning_epochs) == (15, 1)
    assert (case.rnn_type, case.rnn_hidden_dim, case.rnn_num_layers) == ("lstm", 256, 1)
    with pytest.warns(UserWarning, match="never backpropagated"):
        algorithm = build(case, "rsl_rl")
    assert algorithm.learning_rate == 1e-3
    assert algorithm.max_grad_norm is None
    assert widths(algorithm.student.mlp) == [256, 256, 256, 12]
    assert type(algorithm.teacher) is MLPModel


def test_agents_are_equal_to_rsl_rls(gear, anymal):
    check_equal(small(gear))
    check_equal(small(anymal))


def test_a_gru_that_sees_frames_of_its_own_size_is_equal_to_rsl_rls():
    case = Case(
        algorithm="distillation",
        **SMALL,
        rnn_type="gru",
        rnn_hidden_dim=8,
        camera_period=5,
        image_size=(58, 87),
        obs_dims={"policy": 53},
        models={"student": {"hidden_dims": [8]}},
    )
    check_equal(case)
    assert build(case, "rsl_rl").storage.observations["camera"].shape[2:] == (1, 58, 87)


def test_a_case_survives_the_way_to_a_process_of_its_own(gear):
    there = Case(**json.loads(json.dumps(asdict(gear))))
    assert asdict(there) == json.loads(json.dumps(asdict(gear)))
    few = {"num_envs": 32, "num_steps": 2, "gradient_length": 2}
    ours, theirs = (build(replace(case, **few), "rsl_tbptt").actor for case in (gear, there))
    assert str(ours) == str(theirs)
