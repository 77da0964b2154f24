"""The recall task needs exactly the documented memory; gradient_length decides who learns it."""

from dataclasses import is_dataclass

import pytest
import torch
from support.one_pass import ONE_PASS
from support.perfect_teacher import learned
from support.safe_runs import model_cfg

from rsl_tbptt_tasks.memory import RecallEnv


def test_loggers_can_read_the_config():
    """rsl_rl's writer for Weights & Biases needs a dataclass."""
    assert is_dataclass(RecallEnv(4, 3).cfg)


def test_rewards_and_dones_by_hand():
    env = RecallEnv(num_envs=1, recall_length=2)
    cue = env.get_observations()["policy"][0, 0].item()
    assert abs(cue) == 1
    trace = []
    for action in (cue, cue, cue, 0.0):
        obs, rewards, dones, _ = env.step(torch.tensor([[action]]))
        trace.append((rewards.item(), dones.item(), obs["policy"][0, 1].item()))
    assert trace == [(0.0, 0, 0.0), (0.0, 0, 1.0), (1.0, 1, 0.0), (0.0, 0, 0.0)]


def test_the_cue_is_hidden_from_the_policy_and_known_to_the_teacher():
    env = RecallEnv(num_envs=64, recall_length=3)
    for _ in range(8):
        obs, _, _, _ = env.step(torch.zeros(64, 1))
        first = env.episode_length_buf == 0
        assert (obs["policy"][~first, 0] == 0).all()
        asked = obs["policy"][:, 1] == 1
        assert torch.equal(obs["privileged"][:, 2].abs(), asked.float())


def distil(gradient_length, recall_length, model="RNNModel"):
    """Return the mean reward per question of a student with or without memory."""
    memory = {"rnn_type": "gru", "rnn_hidden_dim": 32} if model == "RNNModel" else {}
    options = {
        "gradient_length": gradient_length,
        "learning_rate": 5e-3,
        **ONE_PASS,  # an average follows a student that has just begun to learn later
    }
    student = model_cfg(model, hidden_dims=[32], **memory)
    return learned(student, recall_length, num_steps=48, iterations=150, **options)


@pytest.mark.long
# One student's gradient_length is too short to learn, and a health metric warns of it.
@pytest.mark.filterwarnings("ignore:Loss/explained_variance/student")
def test_gradient_length_decides_what_is_remembered():
    assert distil(gradient_length=24, recall_length=16) > 0.9
    assert abs(distil(gradient_length=4, recall_length=16)) < 0.2
    assert abs(distil(gradient_length=24, recall_length=16, model="MLPModel")) < 0.2
