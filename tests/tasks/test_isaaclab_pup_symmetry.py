"""The mirror image of Pup is what a mirrored robot sees and does, for teacher and student."""

import pytest

pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from support import mirrored_pup
from support.isaaclab_process import look_at

pytestmark = [
    pytest.mark.isaaclab,
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script:DeprecationWarning"),
]

TASK = "Tbptt-Velocity-Flat-Pup"
NUM_ENVS = 8
STIFFNESS = slice(37, 45)  # columns of the teacher's observations
PULL = 45


def launch():
    return [look_at(TASK, NUM_ENVS, measure, change) for change in (exact, with_history)]


def exact(env_cfg):
    mirrored_pup.without_sensor_faults(env_cfg)


def with_history(env_cfg):
    exact(env_cfg)
    env_cfg.observations.policy.history_length = mirrored_pup.HISTORY


def measure(env):
    def turn_mirrored(side):
        command = env.command_manager.get_term("base_velocity").vel_command_b
        command[:] = torch.tensor([0.3, 0.1 * side, 0.6 * side])

    return mirrored_pup.compare(env, turn_mirrored)


@pytest.fixture(scope="module")
def seen(isaaclab):
    return isaaclab.call(f"{__file__}:launch")[0]


@pytest.mark.parametrize("history", [0, 1])
@pytest.mark.parametrize("group", ["policy", "teacher"])
def test_mirror_image_is_what_a_mirrored_robot_sees(seen, history, group):
    expected, observed = (torch.tensor(seen[history][n][group]) for n in ("expected", "seen"))
    if group == "teacher":  # each robot has its own motors and a new pull in every episode
        for values in (expected, observed):
            values[:, [*range(STIFFNESS.start, STIFFNESS.stop), PULL]] = 0.0
    torch.testing.assert_close(observed, expected, atol=1e-3, rtol=0.0)
    assert expected.shape[1] == (48 if group == "teacher" else 19 * (1 + 2 * history))
    moving = expected.abs().amax(dim=0).gt(0.01).sum()
    assert moving >= (48 - 9 if group == "teacher" else expected.shape[1] - 3)


@pytest.mark.parametrize("history", [0, 1])
def test_mirroring_keeps_the_original_and_twice_is_the_identity(seen, history):
    assert seen[history]["kept"]
    assert seen[history]["twice"] == 0.0
    assert seen[history]["actions"] == seen[history]["expected_actions"]
