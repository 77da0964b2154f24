"""What a checkpoint tells of the robot, read from environments without a simulator.

What Isaac Lab's and mjlab's managers tell stands in the tests of their tasks.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rsl_tbptt.checkpoints.robot import describe_robot

OBS = TensorDict({"policy": torch.zeros(4, 7), "camera": torch.zeros(4, 1, 8, 9)}, batch_size=[4])
GROUPS = {"policy": {"shape": [7]}, "camera": {"shape": [1, 8, 9]}}


def test_an_environment_without_managers_tells_groups_and_step_time():
    wrapped = SimpleNamespace(unwrapped=SimpleNamespace(step_dt=0.02), clip_actions=100.0)
    expected = {"observation_groups": GROUPS, "step_dt": 0.02, "clip_actions": 100.0}
    assert describe_robot(wrapped, OBS) == expected
    assert describe_robot(object(), OBS) == {"observation_groups": GROUPS}


def test_what_an_environment_says_itself_goes_before_what_is_found():
    own = {"joint_names": ["hip", "knee"], "step_dt": 0.01}
    env = SimpleNamespace(step_dt=0.02, describe_robot=lambda: own)
    assert describe_robot(env, OBS) == {"observation_groups": GROUPS, **own}


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
def test_what_cannot_be_read_is_named_and_ends_no_training(name, env):
    with pytest.warns(UserWarning, match=rf"^{name} of SimpleNamespace could not be read"):
        found = describe_robot(env, OBS)
    assert found.keys() <= {"observation_groups"} - {name}


def base_ang_vel(env):
    return torch.zeros(4, 3)


class Phase:
    """A term that is an object, as classes of terms become."""

    def __call__(self, env):
        return torch.zeros(4, 4)


def observed(function):
    none = dict.fromkeys(("scale", "clip", "noise"))
    return SimpleNamespace(func=function, history_length=0, flatten_history_dim=True, **none)


def test_functions_of_observations_and_ranges_of_commands_are_told():
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


@pytest.mark.parametrize("sdk_names", [["knee", "hip"], None])
def test_the_order_of_motors_is_told_where_the_robots_config_has_it(sdk_names):
    zeros = torch.zeros(4, 2)
    data = SimpleNamespace(default_joint_pos=zeros, joint_stiffness=zeros, joint_damping=zeros)
    robot = SimpleNamespace(
        joint_names=["hip", "knee"],
        cfg=SimpleNamespace(joint_sdk_names=sdk_names),
        data=data,
        actuators={},
    )
    action = SimpleNamespace(_asset=robot, _joint_names=robot.joint_names, action_dim=2, cfg=None)
    manager = SimpleNamespace(active_terms=["legs"], get_term=lambda _: action)
    found = describe_robot(SimpleNamespace(action_manager=manager), OBS)
    assert found["joint_names"] == ["hip", "knee"]
    assert found.get("joint_sdk_names") == sdk_names
