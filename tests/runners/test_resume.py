"""A training that is resumed goes on to the bit, where the environment can be put back."""

from typing import Any

import numpy as np
import pytest
import torch
from support.safe_runs import NUM_ENVS, make_runner

from rsl_tbptt_tasks.memory import RecallEnv

CASES = {
    "distillation": ("distillation", {"memory_rollouts": 0, "num_mini_batches": 2}),
    "with a teacher that acts": (
        "distillation",
        {"memory_rollouts": 0, "teacher_action_share": 0.5, "teacher_action_updates": 5},
    ),
    "with a memory of rollouts": (
        "distillation",
        {"memory_rollouts": 2, "save_memory": True, "num_mini_batches": 2},
    ),
    "ppo": ("ppo", {"num_mini_batches": 2, "schedule": "adaptive", "desired_kl": 0.01}),
    "a KL penalty": ("ppo", {"policy_loss": "kl_penalty", "schedule": "fixed"}),
}


def numbers_of(runner):
    """Return parameters, normalisers and optimiser, and what the logger counts."""
    saved = runner.alg.save()
    logger = runner.logger
    counted = (logger.tot_timesteps, [*logger.rewbuffer], logger.cur_reward_sum.tolist())
    models = {name: value for name, value in saved.items() if name.endswith("state_dict")}
    return models, counted


def assert_equal(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_equal(value, other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_ends_with_the_same_bits(case, tmp_path):
    kind, options = CASES[case]
    whole = make_runner(tmp_path / "whole", kind, algorithm=options)
    whole.learn(5, init_at_random_ep_len=True)
    stopped = make_runner(tmp_path / "parts", kind, algorithm=options)
    stopped.learn(2, init_at_random_ep_len=True)
    torch.rand(7)
    other = RecallEnv(NUM_ENVS, 3, seed=9)
    resumed = make_runner(tmp_path / "parts", kind, algorithm=options, env=other)
    resumed.load(str(tmp_path / "parts" / "latest"))
    resumed.learn(3, init_at_random_ep_len=True)
    assert_equal(numbers_of(resumed), numbers_of(whole))


def test_generators_go_on_when_training_does_and_not_when_a_file_is_loaded(tmp_path):
    runner = make_runner(tmp_path)
    runner.learn(1)
    expected = torch.rand(3), np.random.rand(3)
    resumed = make_runner(tmp_path)
    torch.manual_seed(5)
    np.random.seed(5)
    resumed.load(str(tmp_path / "latest"))
    drawn = torch.rand(3), np.random.rand(3)
    assert not torch.equal(drawn[0], expected[0])
    seen = []
    resumed.alg.train_mode = lambda: seen.extend((torch.rand(3), np.random.rand(3)))
    resumed.learn(1)
    assert torch.equal(seen[0], expected[0])
    assert (seen[1] == expected[1]).all()


def simulator():
    """Return an environment that cannot be put back."""
    absent: dict[str, Any] = {"state_dict": property(), "load_state_dict": property()}
    return type("Simulator", (RecallEnv,), absent)(NUM_ENVS, 3)


def test_what_cannot_be_put_back_begins_anew_with_empty_hidden_states(tmp_path):
    make_runner(tmp_path, env=simulator()).learn(2)
    file = torch.load(tmp_path / "model_1.pt", weights_only=True)
    assert file["rsl_tbptt_runner"]["resume"].keys() == {"generators", "counters"}
    resumed = make_runner(tmp_path, env=simulator())
    resumed.load(str(tmp_path / "latest"))
    resumed.alg.train_mode = lambda: states.append(resumed.alg.student.get_hidden_state())
    states = []
    resumed.learn(1)
    assert states == [None]
    assert resumed.logger.tot_timesteps == 3 * 6 * NUM_ENVS


def test_a_teachers_checkpoint_resumes_nothing(tmp_path):
    make_runner(tmp_path, "ppo").learn(1)
    student = make_runner()
    teacher = student.alg.teacher.state_dict()
    file = torch.load(tmp_path / "model_0.pt", weights_only=True)
    del file["rsl_tbptt"]  # what the actor saw
    torch.save({**file, "actor_state_dict": teacher}, tmp_path / "model_9.pt")
    student.load(str(tmp_path / "model_9.pt"))
    assert (student.num_iterations, student._resumed) == (0, [])


def test_a_checkpoint_of_the_stock_runner_resumes_without_these(tmp_path):
    runner = make_runner()
    torch.save({**runner.alg.save(), "iter": 3, "infos": None}, tmp_path / "model_3.pt")
    resumed = make_runner(tmp_path)
    resumed.load(str(tmp_path / "latest"))
    resumed.learn(1)
    assert resumed.num_iterations == 5
