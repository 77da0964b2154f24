"""The recall task needs exactly the documented memory; gradient_length decides who learns it."""

from dataclasses import is_dataclass

import pytest
import torch
from rsl_rl.runners import DistillationRunner
from support.perfect_teacher import PerfectTeacher
from support.safe_runs import make_runner, model_cfg

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


def distil(gradient_length, recall_length, model="RNNModel", iterations=150):
    """Train a student under the stock runner; return its mean reward per question."""
    memory = {"rnn_type": "gru", "rnn_hidden_dim": 32} if model == "RNNModel" else {}
    options = {
        "gradient_length": gradient_length,
        "learning_rate": 5e-3,
        "num_learning_epochs": 1,
        "num_mini_batches": 1,
        "buffer_rollouts": 0,
        "weight_average": False,  # it follows a student that has just begun to learn later
    }
    env = RecallEnv(num_envs=64, recall_length=recall_length)
    runner = make_runner(
        runner_class=DistillationRunner,
        env=env,
        algorithm=options,
        student=model_cfg(model, hidden_dims=[32], **memory),
        teacher={"class_name": PerfectTeacher},
        num_steps_per_env=48,
    )
    runner.learn(iterations)
    policy, obs = runner.get_inference_policy(), env.get_observations()
    total = count = 0.0
    with torch.inference_mode():
        for step in range(10 * (recall_length + 1)):
            obs, rewards, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            if step > 2 * recall_length:
                total, count = total + rewards.sum().item(), count + dones.sum().item()
    return total / count


@pytest.mark.long
# One student's gradient_length is too short to learn, and a health metric warns of it.
@pytest.mark.filterwarnings("ignore:Loss/explained_variance/student")
def test_gradient_length_decides_what_is_remembered():
    assert distil(gradient_length=24, recall_length=16) > 0.9
    assert abs(distil(gradient_length=4, recall_length=16)) < 0.2
    assert abs(distil(gradient_length=24, recall_length=16, model="MLPModel")) < 0.2
