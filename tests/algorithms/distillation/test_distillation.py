"""Properties of TbpttDistillation that rsl_rl's lacks: scale, completeness, continuity, memory."""

import copy

import pytest
import torch
from rsl_rl.algorithms import Distillation
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
)
from support.one_pass import ONE_PASS
from support.tolerances import PARITY_FLOAT32, SAME_FLOAT32

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.health import limit_of


def gradient_norms(algorithm_class, gradient_length, monkeypatch):
    """Return the norm of the first optimiser step's gradient on one fixed batch, unclipped."""
    algorithm = make_distillation(
        algorithm_class, 24, 8, student="mlp", gradient_length=gradient_length, max_grad_norm=None
    )
    obs = make_obs(8, torch.Generator().manual_seed(0))
    with torch.inference_mode():  # the same observations at every step: truncation cannot matter
        for _ in range(24):
            algorithm.act(obs)
            algorithm.process_env_step(obs, torch.zeros(8), torch.zeros(8).long(), {})
    norms = []

    def record_norm(closure=None):
        gradients = [p.grad for p in algorithm.student.parameters() if p.grad is not None]
        norms.append(torch.stack([g.norm() for g in gradients]).norm().item())

    monkeypatch.setattr(algorithm.optimizer, "step", record_norm)  # parameters stay fixed
    algorithm.update()
    return norms


LENGTHS = (1, 2, 4, 8, 12)


def test_gradient_norm_does_not_depend_on_gradient_length(monkeypatch):
    norms = [norm for k in LENGTHS for norm in gradient_norms(TbpttDistillation, k, monkeypatch)]
    assert norms == pytest.approx([norms[0]] * len(norms), rel=0.01)


def test_gradient_norm_of_rsl_rl_grows_twelvefold(monkeypatch):
    norms = [gradient_norms(Distillation, k, monkeypatch)[0] for k in LENGTHS]
    assert norms == pytest.approx([norms[0] * k for k in LENGTHS], rel=0.01)


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


def test_first_rollout_after_a_change_of_state_is_replayed_from_that_state():
    algorithm = make_distillation(TbpttDistillation, 5, 3, gradient_length=5, learning_rate=1e-30)
    roll_out(algorithm, 0)
    algorithm.update()
    with torch.inference_mode():  # someone plays with the policy between two calls of learn()
        algorithm.student(make_obs(3))
    roll_out(algorithm, 1)
    live = copy.deepcopy(algorithm.student.get_hidden_state())
    algorithm.update()
    for got, want in zip(algorithm.student.get_hidden_state(), live, strict=True):
        torch.testing.assert_close(got, want, **SAME_FLOAT32)


class RecurrentElsewhere(RNNModel):
    """A user's recurrent model, whose own forward pass runs step by step."""

    def get_latent(self, obs, masks=None, hidden_state=None):
        return super().get_latent(obs, masks, hidden_state) * 1.0


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
        for seed in range(2):
            roll_out(algorithm, seed)
            algorithm.update()
        results.append(parameters_of(algorithm))
    torch.testing.assert_close(*results, **PARITY_FLOAT32)


@pytest.mark.parametrize(("student", "stepwise"), [("mlp", False), ("lstm", True), ("gru", False)])
def test_mixed_precision_survives_many_iterations(student, stepwise):
    student_model = make_model("student", student, 4, seed=1)
    if stepwise:
        student_model.__class__ = RecurrentElsewhere
    teacher_model = make_model("teacher", "mlp", 4, seed=2)
    storage = RolloutStorage("distillation", 4, 6, make_obs(4), [ACTION_DIM], "cpu")
    algorithm = TbpttDistillation(
        student_model, teacher_model, storage, use_mixed_precision=True, gradient_length=3
    )
    losses = []
    for _ in range(8):
        roll_out(algorithm, 0)
        losses.append(algorithm.update()["behavior"])
    state = algorithm.student.get_hidden_state()
    assert state is None or all(tensor.dtype == torch.float32 for tensor in state)
    assert losses[-1] < losses[0]


def test_kl_compares_with_the_teachers_own_distribution():
    algorithm = make_distillation(TbpttDistillation, 4, 3, loss_type="kl", gradient_length=4)
    with torch.no_grad():
        algorithm.teacher.distribution.std_param.fill_(0.7)
    roll_out(algorithm, 0)
    expected = []
    algorithm_student = copy.deepcopy(algorithm.student)
    algorithm_student.reset()
    for step in range(4):
        obs, dones = algorithm.storage.observations[step], algorithm.storage.dones[step].view(-1)
        algorithm.teacher(obs, stochastic_output=True)
        with torch.no_grad():
            algorithm_student(obs, stochastic_output=True)
            expected.append(
                algorithm_student.get_kl_divergence(
                    algorithm.teacher.output_distribution_params,
                    algorithm_student.output_distribution_params,
                )
            )
            algorithm_student.reset(dones)
    loss = algorithm.update()["behavior"]
    assert loss == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)


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
