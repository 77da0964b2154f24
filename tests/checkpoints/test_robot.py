"""Properties of the robot in a checkpoint, read from environments without a simulator.

The tests of the tasks cover Isaac Lab's and mjlab's managers.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rsl_tbptt.checkpoints.robot import describe_robot

OBS = TensorDict({"policy": torch.zeros(4, 7), "camera": torch.zeros(4, 1, 8, 9)}, batch_size=[4])
GROUPS = {"policy": {"shape": [7]}, "camera": {"shape": [1, 8, 9]}}


def test_an_environment_without_managers_provides_groups_and_step_time():
    wrapped = SimpleNamespace(unwrapped=SimpleNamespace(step_dt=0.02), clip_actions=100.0)
    expected = {"observation_groups": GROUPS, "step_dt": 0.02, "clip_actions": 100.0}
    assert describe_robot(wrapped, OBS) == expected
    assert describe_robot(object(), OBS) == {"observation_groups": GROUPS}


def broken(*args: object) -> Any:
    raise RuntimeError("no such joint")


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("describe_robot", SimpleNamespace(describe_robot=broken)),
        ("describe_robot", SimpleNamespace(describe_robot=lambda: {"a": object()})),
        (
            "(actions|joints)",
            SimpleNamespace(action_manager=SimpleNamespace(active_terms=["legs"])),
        ),
        ("observation_groups", SimpleNamespace(observation_manager=object())),
    ],
)
def test_values_that_cannot_be_read_are_named_and_do_not_end_the_training(name, env):
    with pytest.warns(UserWarning, match=rf"^{name} of SimpleNamespace could not be read"):
        found = describe_robot(env, OBS)
    assert found.keys() <= {"observation_groups"} - {name}


def base_ang_vel(env):
    return torch.zeros(4, 3)


class Phase:
    """A term that is an object, as terms that are classes become."""

    def __call__(self, env):
        return torch.zeros(4, 4)


def observed(function):
    none = dict.fromkeys(("scale", "clip", "noise"))
    return SimpleNamespace(func=function, history_length=0, flatten_history_dim=True, **none)


def test_functions_of_observations_and_ranges_of_commands_are_recorded():
    observations = SimpleNamespace(
        active_terms={"policy": ["w", "phase"]},
        group_obs_term_dim={"policy": [(3,), (4,)]},
        _group_obs_term_cfgs={"policy": [observed(base_ang_vel), observed(Phase())]},
    )
    ranges = SimpleNamespace(lin_vel_x=(-1.0, 1.0), heading=None)
    widest = SimpleNamespace(lin_vel_x=(-2.0, 2.0))
    commands = {
        "velocity": SimpleNamespace(cfg=SimpleNamespace(ranges=ranges)),
        "grown": SimpleNamespace(cfg=SimpleNamespace(ranges=ranges, limit_ranges=widest)),
        "motion": SimpleNamespace(),
    }
    manager = SimpleNamespace(active_terms=[*commands], get_term=commands.get)
    env = SimpleNamespace(observation_manager=observations, command_manager=manager)
    found = describe_robot(env, OBS)
    terms = found["observation_groups"]["policy"]["terms"]
    assert [term["function"] for term in terms] == ["base_ang_vel", "Phase"]
    assert found["command_names"] == [*commands]
    assert found["command_ranges"] == {
        "velocity": {"lin_vel_x": [-1.0, 1.0]},
        "grown": {"lin_vel_x": [-2.0, 2.0]},
    }


SELECTED = {
    "first": (slice(0, 1), {"joint_names": ["hip"]}),
    "by list": ([2, 0], {"joint_names": ["foot", "hip"]}),
    "by tensor, as in Isaac Lab 3.0": (torch.tensor([1, 2]), {"joint_names": ["knee", "foot"]}),
}


@pytest.mark.parametrize(("joint_ids", "expected"), SELECTED.values(), ids=SELECTED.keys())
def test_the_joints_that_a_term_selects_are_recorded_in_order(joint_ids, expected):
    """Names of joints are indices by then, in Isaac Lab and mjlab, in the order of the term."""
    params = {
        "asset_cfg": SimpleNamespace(name="robot", joint_ids=joint_ids, joint_names=["h.*"]),
        "command_name": "base_velocity",
        "function": base_ang_vel,
        "weights": torch.ones(3),
        "object": Phase(),
    }
    cfg = SimpleNamespace(**vars(observed(base_ang_vel)), params=params)
    env = SimpleNamespace(
        scene={"robot": SimpleNamespace(joint_names=["hip", "knee", "foot"])},
        observation_manager=SimpleNamespace(
            active_terms={"policy": ["q"]},
            group_obs_term_dim={"policy": [(7,)]},
            _group_obs_term_cfgs={"policy": [cfg]},
        ),
    )
    [term] = describe_robot(env, OBS)["observation_groups"]["policy"]["terms"]
    assert term["parameters"] == {
        "asset_cfg": {"entity": "robot", **expected},
        "command_name": "base_velocity",
        "function": f"{__name__}:base_ang_vel",
        "weights": "torch:Tensor",
        "object": f"{__name__}:Phase",
    }
