"""Properties of TbpttDistillation that rsl_rl's lacks: scale, completeness, continuity, memory."""

import copy

import pytest
import torch
from rsl_rl.models import RNNModel
from rsl_rl.storage import RolloutStorage
from support.helpers import (
    ACTION_DIM,
    MEMORIES,
    make_distillation,
    make_model,
    make_obs,
    parameters_of,
    roll_out,
    train,
)
from support.one_pass import ONE_PASS
from support.tolerances import PARITY_FLOAT32, SAME_FLOAT32

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.health import limit_of


@pytest.mark.parametrize(
    ("num_steps", "options", "optimizer_steps", "flushed_steps"),
    [
        (24, {"gradient_length": 15}, 2, 9),
        (24, {"gradient_length": 8}, 3, 0),
        (24, {"gradient_length": 15, "tail": "drop"}, 1, 0),
        (24, {"gradient_length": 4, "update_length": 10}, 3, 4),
        (24, {"gradient_length": 12, "update_length": 5}, 5, 4),
        (24, {"gradient_length": 15, "num_learning_epochs": 3}, 6, 9),
    ],
)
def test_every_step_is_trained_on(num_steps, options, optimizer_steps, flushed_steps):
    algorithm = make_distillation(TbpttDistillation, num_steps, 4, **options)
    seen = []
    loss = algorithm._student.loss

    def counting_loss(outputs, labels):
        seen.append(labels["actions"])
        return loss(outputs, labels)

    algorithm._student.loss = counting_loss
    roll_out(algorithm, seed=0)
    before = parameters_of(algorithm)
    metrics = algorithm.update()
    trained = options.get("num_learning_epochs", 1) * (15 if "tail" in options else num_steps)
    labels = torch.cat([window.flatten(0, 1) for window in seen])
    epoch = algorithm.storage.privileged_actions.flatten(0, 1)
    assert torch.equal(labels, epoch.repeat(3, 1)[: trained * 4])
    assert metrics["optimizer_steps"] == optimizer_steps
    assert metrics["flushed_steps"] == flushed_steps
    assert not torch.equal(parameters_of(algorithm), before)


@pytest.mark.parametrize(
    ("student", "options"),
    [
        *((kind, {}) for kind in MEMORIES),
        ("gru", {"update_length": 3}),
        ("cnn-lstm", {"update_length": 7}),
    ],
)
def test_replay_at_fixed_parameters_reproduces_the_states_of_the_rollout(student, options):
    algorithm = make_distillation(
        TbpttDistillation, 11, 5, student=student, gradient_length=4, learning_rate=1e-30, **options
    )
    for seed in range(3):
        roll_out(algorithm, seed)
        live = copy.deepcopy(algorithm.student.get_hidden_state())
        algorithm.update()
        for got, want in zip(algorithm.student.get_hidden_state(), live, strict=True):
            torch.testing.assert_close(got, want, **SAME_FLOAT32)


def test_a_recurrent_teacher_is_never_interrupted():
    algorithm = make_distillation(
        TbpttDistillation, 6, 4, teacher="lstm", num_learning_epochs=2, gradient_length=4
    )
    twin = copy.deepcopy(algorithm.teacher)
    for seed in range(4):
        expected = []

        def follow(step, obs, expected=expected):
            if step > 0:
                twin.reset(algorithm.storage.dones[step - 1].view(-1))
            expected.append(twin(obs))

        roll_out(algorithm, seed, on_step=follow)
        labels = algorithm.storage.privileged_actions.clone()
        with torch.inference_mode():
            twin.reset(algorithm.storage.dones[-1].view(-1))
        torch.testing.assert_close(labels, torch.stack(expected), rtol=0, atol=0)
        algorithm.update()


@pytest.mark.parametrize("loss_type", ["mse", "nll"])
def test_other_recurrent_models_run_step_by_step(loss_type):
    results = []
    for model_class in (RNNModel, RecurrentElsewhere):
        student, teacher = make_model("student", "lstm", 4, 1), make_model("teacher", "mlp", 4, 2)
        student.__class__ = model_class
        storage = RolloutStorage("distillation", 4, 7, make_obs(4), [ACTION_DIM], "cpu")
        algorithm = TbpttDistillation(
            student,
            teacher,
            storage,
            gradient_length=3,
            num_micro_batches=2,
            loss_type=loss_type,
            **ONE_PASS,
        )
        train(algorithm, *range(2))
        results.append(parameters_of(algorithm))
    torch.testing.assert_close(*results, **PARITY_FLOAT32)


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
