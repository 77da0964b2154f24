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
