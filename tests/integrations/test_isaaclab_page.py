"""docs/howto/isaaclab.md: its commands run in Isaac Lab, its code builds, its claims hold."""

import importlib.util
import re

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from isaaclab.utils import to_dict
from support.isaaclab_page import EXAMPLE, NEEDS_GPUS, PAGE, commands
from torch import nn

from rsl_tbptt.files import read_config
from rsl_tbptt_tasks.isaaclab.cartpole_agents import CartpoleTeacherCfg

pytestmark = [
    pytest.mark.isaaclab,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

SMOKE = "recurrent PPO"
"""The one command that `make test` runs."""
RUNS = [
    pytest.param(comment, marks=() if comment == SMOKE else pytest.mark.long)
    for comment in commands()
    if comment != NEEDS_GPUS
]
ITERATION = 2 * 8 * 2
"""Optimiser steps of one iteration: two passes, eight mini-batches, two windows."""
TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""


@pytest.mark.parametrize("comment", RUNS)
def test_command_runs(page, comment):
    if comment == "wandb" and not importlib.util.find_spec("wandb"):
        pytest.skip("wandb is not installed")
    assert page(comment).folder.exists()


def read(run):
    return torch.load(run.checkpoint, weights_only=True)


def steps(checkpoint):
    """Return how many steps the optimiser has taken, one number for all parameters."""
    (found,) = {
        int(state["step"]) for state in checkpoint["optimizer_state_dict"]["state"].values()
    }
    return found


def equal(loaded, trained, without="nothing"):
    return all(torch.equal(loaded[name], trained[name]) for name in trained if without not in name)


def counted(run):
    """Return the environment's steps at the end of a run."""
    return read(run)["rsl_tbptt"]["env_state"]["common_step_counter"]


def own_steps(run):
    """Return the environment's steps of a run's one iteration."""
    return read_config(run.folder / "params" / "agent.yaml")["num_steps_per_env"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("student", "teacher"),
    [("the student", "the teacher"), ("options", "the teacher"), ("your student", "your teacher")],
)
def test_a_student_is_recurrent_and_imitates_its_teacher(page, student, teacher):
    runs = page(student), page(teacher)
    student, teacher = map(read, runs)
    # Its curricula go on from those of a teacher that counts its steps, as rsl_rl's PPO does not.
    before = own_steps(runs[1]) if "rsl_tbptt" in teacher else 0
    assert counted(runs[0]) == before + own_steps(runs[0])
    assert "rnn.rnn.weight_hh_l0" in student["student_state_dict"]
    assert steps(student) in (ITERATION, 2 * 8)  # the rollout of my_task is one window
    loaded, trained = student["teacher_state_dict"], teacher["actor_state_dict"]
    assert loaded.keys() == trained.keys()
    assert equal(loaded, trained)


@pytest.mark.long
def test_fine_tuning_starts_from_the_student(page):
    """The first updates train the critic alone."""
    student = read(page("the student"))["student_state_dict"]
    tuned = read(page("fine-tuning"))["actor_state_dict"]
    assert equal(tuned, student, without="std")
    assert tuned["distribution.std_param"].item() == pytest.approx(0.2)
    runs = page("fine-tuning"), page("the student")
    assert counted(runs[0]) == counted(runs[1]) + own_steps(runs[0])


@pytest.mark.long
def test_resuming_continues_with_student_optimizer_and_teacher(page):
    student, resumed = read(page("the student")), read(page("resuming"))
    assert steps(resumed) == steps(student) + ITERATION
    assert equal(resumed["teacher_state_dict"], student["teacher_state_dict"])
    runs = page("resuming"), page("the student")
    assert counted(runs[0]) == counted(runs[1]) + own_steps(runs[0])


def test_the_config_of_the_page_builds_and_is_that_of_the_example():
    names = {"MyTeacherCfg": CartpoleTeacherCfg}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(block, "isaaclab.md", "exec"), names)
    cfg = names["MyStudentCfg"]()
    assert cfg.algorithm.gradient_length == 24
    number = cfg.algorithm.num_learning_epochs * cfg.algorithm.num_mini_batches
    assert f"takes {number} optimiser steps per iteration" in PAGE
    assert "MISSING" not in str(to_dict(cfg))
    assert block.split("\n\n\n")[1] in (EXAMPLE / "my_task" / "agents.py").read_text()


WARNING = "Time-outs are bootstrapped with the value before the last step"


@pytest.mark.long
@pytest.mark.parametrize(
    ("comment", "final_obs"), [("final observations", True), ("recurrent PPO", False)]
)
def test_time_outs_count_the_final_observation_or_warn_once(page, comment, final_obs):
    seen = page(comment).seen
    timed_out = [step for step in seen["steps"] if step["time_outs"]]
    assert timed_out
    assert all(step["final_obs"] == final_obs for step in timed_out)
    warned = [message for message in seen["warnings"] if message.startswith(WARNING)]
    assert len(warned) == (not final_obs)


@pytest.fixture(scope="module")
def played(page):
    """Observations, actions and dones, each (T, N, ...), and ``starts``, the dones before."""
    seen = torch.load(page("playing").folder / "played.pt")
    seen["starts"] = torch.cat((torch.ones_like(seen["dones"][:1]), seen["dones"][:-1]))
    return seen


@torch.no_grad()
def difference_in_plain_torch(checkpoint, played, starts):
    """Return how far the actions of play are from the student's, cleared before some steps."""
    weights = checkpoint["student_state_dict"]
    lstm = nn.LSTM(played["obs"].shape[-1], 64)
    lstm.load_state_dict({k.removeprefix("rnn.rnn."): v for k, v in weights.items() if "rnn" in k})
    state = [torch.zeros(1, played["obs"].shape[1], 64)] * 2
    differences = []
    for obs, actions, start in zip(played["obs"], played["actions"], starts, strict=True):
        state = [torch.where(start[None, :, None], 0.0, part) for part in state]
        output, state = lstm(obs[None], state)
        hidden = nn.functional.linear(output[0], weights["mlp.0.weight"], weights["mlp.0.bias"])
        hidden = nn.functional.elu(hidden)
        ours = nn.functional.linear(hidden, weights["mlp.2.weight"], weights["mlp.2.bias"])
        differences.append((ours - actions).abs().max())
    return float(max(differences))


@pytest.mark.long
def test_play_clears_the_state_where_an_episode_ends(page, played):
    student, first = read(page("the student")), torch.zeros_like(played["starts"])
    first[0] = True
    assert difference_in_plain_torch(student, played, played["starts"]) < TOLERANCE
    assert difference_in_plain_torch(student, played, first) > 100 * TOLERANCE


@pytest.mark.long
def test_an_exported_policy_acts_like_play(page, played):
    policy = torch.jit.load(page("the student").folder / "exported" / "policy.pt")
    env = int(played["dones"][:-5].any(0).nonzero()[0])  # has an episode that ended
    for obs, start, action in zip(
        *(played[name][:, env] for name in ("obs", "starts", "actions")), strict=True
    ):
        if start:
            policy.reset()
        assert (policy(obs[None])[0] - action).abs().max() < TOLERANCE


PROPRIOCEPTION = 3 + 3 + 3 + 12 + 12 + 12
"""Angular velocity, gravity, command; positions, velocities and last actions of 12 joints."""
PRIVILEGED = 3 + 1 + 17 * 11
"""Linear velocity, mass of the base, heights over 1.6 m by 1.0 m every 0.1 m."""
ROUGH = """
train --rl_library rsl_rl --agent rsl_rl_recurrent_cfg_entry_point
physics=newton_mjwarp --device cpu agent.device=cpu --task Tbptt-Velocity-Rough-Anymal-D
env.scene.terrain.terrain_generator.num_rows=1 env.scene.terrain.terrain_generator.num_cols=2
"""


@pytest.mark.long
def test_on_rough_ground_only_the_critic_sees_the_height_scan_unless_its_variant_is_chosen(page):
    """In real physics; the robot is a stand-in."""
    blind, seeing = (
        read(page.run(words.split())) for words in (ROUGH, ROUGH.replace("-D\n", "-D-Scan\n"))
    )
    assert blind["actor_state_dict"]["rnn.rnn.weight_ih_l0"].shape[1] == PROPRIOCEPTION
    assert blind["critic_state_dict"]["mlp.0.weight"].shape[1] == PROPRIOCEPTION + PRIVILEGED
    assert seeing["rsl_tbptt"]["models"]["actor"]["groups"]["scan"]["shape"] == [1, 11, 17]
    actor = seeing["actor_state_dict"]
    features = actor["cnns.scan.2.weight"].shape[0] * 2 * 3
    assert actor["rnn.rnn.weight_ih_l0"].shape[1] == PROPRIOCEPTION + features
    moments = seeing["optimizer_state_dict"]["state"]
    assert all(moment["exp_avg"].abs().sum() > 0 for moment in moments.values())
