"""Properties of TbpttDistillation that rsl_rl's lacks: scale, completeness, continuity, memory."""

import copy

import pytest
import torch
from support.helpers import MEMORIES, make_distillation, roll_out, train
from support.tolerances import SAME_FLOAT32
from torch.distributions import Normal, kl_divergence

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.health import limit_of


@pytest.mark.parametrize(
    ("options", "optimizer_steps", "flushed_steps"),
    [
        ({"gradient_length": 15}, 2, 9),
        ({"gradient_length": 8}, 3, 0),
        ({"gradient_length": 15, "tail": "drop"}, 1, 0),
        ({"gradient_length": 4, "update_length": 10}, 3, 4),
        ({"gradient_length": 12, "update_length": 5}, 5, 4),
        ({"gradient_length": 15, "num_learning_epochs": 3}, 6, 9),
    ],
)
def test_optimizer_steps_and_flushed_steps_are_counted(options, optimizer_steps, flushed_steps):
    metrics = train(make_distillation(TbpttDistillation, 24, 4, **options), 0)
    assert metrics["optimizer_steps"] == optimizer_steps
    assert metrics["flushed_steps"] == flushed_steps


@pytest.mark.parametrize(
    ("student", "options"),
    [
        *((kind, {}) for kind in MEMORIES),
        ("gru", {"update_length": 3}),
        ("cnn-lstm", {"update_length": 7}),
        ("lstm", {"num_mini_batches": 3, "num_learning_epochs": 2, "buffer_rollouts": 4}),
    ],
)
def test_replay_at_fixed_parameters_reproduces_the_states_of_the_rollout(student, options):
    algorithm = make_distillation(
        TbpttDistillation, 11, 5, student=student, gradient_length=4, learning_rate=1e-30, **options
    )
    for seed in range(3):
        if seed == 2:
            with torch.inference_mode():  # someone plays between two calls of learn()
                algorithm.student(algorithm.storage.observations[0])
        roll_out(algorithm, seed)
        live = copy.deepcopy(algorithm.student.get_hidden_state())
        algorithm.update()
        for got, want in zip(algorithm.student.get_hidden_state(), live, strict=True):
            torch.testing.assert_close(got, want, **SAME_FLOAT32)


def test_kl_compares_with_the_distribution_of_a_teacher_that_keeps_its_memory():
    options = {"teacher": "lstm", "loss_type": "kl", "num_learning_epochs": 2}
    algorithm = make_distillation(
        TbpttDistillation, 6, 4, **options, gradient_length=4, learning_rate=1e-30
    )
    algorithm.teacher.distribution.std_param.data.fill_(0.7)
    twins = copy.deepcopy((algorithm.teacher, algorithm.student))
    for seed in range(3):
        roll_out(algorithm, seed)
        storage, expected = algorithm.storage, []
        for obs, dones in zip(storage.observations, storage.dones[..., 0], strict=True):
            for twin in twins:
                twin(obs, stochastic_output=True)
            gaussians = [Normal(twin.output_mean, twin.output_std) for twin in twins]
            expected.append(kl_divergence(*gaussians).sum(-1))
            for twin in twins:
                twin.reset(dones)
        loss = torch.stack(expected).mean().item()
        assert algorithm.update()["behavior"] == pytest.approx(loss, rel=1e-5)


def test_metrics_are_plain_numbers_with_the_true_rates():
    algorithm = make_distillation(TbpttDistillation, 6, 4, gradient_length=3)
    roll_out(algorithm, 0)
    dones = algorithm.storage.dones.float().mean().item()
    metrics = algorithm.update()
    assert {name for name in metrics if limit_of(name) is None} == {
        "behavior",
        "grad_norm",
        "optimizer_steps",
        "flushed_steps",
        "done_rate",
        "skipped_updates",
    }
    assert all(type(value) is float for value in metrics.values())
    assert metrics["done_rate"] == pytest.approx(dones)
    assert metrics["grad_norm"] > 0
