"""The gradient of each optimiser step is that of the mean over fresh and old samples."""

import pytest
import torch
from support.helpers import hold_frames, make_distillation, make_model, roll_out
from support.tbptt_reference import squared_error, stepwise_gradients

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.rollout import Rollout

pytestmark = pytest.mark.usefixtures("float64")

T, N = 7, 5
FIXED = {"optimizer": "sgd", "learning_rate": 1e-30, "max_grad_norm": None}
"""The parameters do not change, so that the gradient of each optimiser step can be compared."""


def make(**options):
    """Build an algorithm that keeps the gradient of each optimiser step in ``seen``."""
    options = {"gradient_length": 3, **FIXED, **options}
    algorithm = make_distillation(TbpttDistillation, T, N, **options)
    algorithm.seen = []

    def keep(*_):
        parameters = algorithm.student.parameters()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        algorithm.seen.append(torch.cat([grad.flatten() for grad in grads]))

    algorithm.optimizer.register_step_pre_hook(keep)
    return algorithm


def recorded(algorithm):
    """Return the stored rollout as the reference takes it."""
    storage, labels = algorithm.storage, algorithm.storage.privileged_actions.clone()
    dones = storage.dones.squeeze(-1).bool()
    rollout = Rollout.from_dones(storage.observations.clone(), {"actions": labels}, dones)
    return rollout, hidden_state.clone(algorithm.experience.start_state)


def assert_gradients(seen, expected):
    for got, want in zip(seen, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("student", "k1", "k2", "num_micro_batches", "with_buffer"),
    [
        ("lstm", 3, 3, 3, False),
        ("lstm", 2, 4, 1, True),
        ("gru", 6, 3, 3, True),
        ("mlp", 3, 3, 1, True),
        ("cnn-lstm", 7, 7, 1, False),
        ("cnn-lstm", 2, 4, 3, True),
    ],
)
def test_gradients_are_those_of_the_mean_over_fresh_and_old_samples(
    student, k1, k2, num_micro_batches, with_buffer
):
    options = {"buffer_rollouts": 4, "buffer_share": 100.0} if with_buffer else {}
    lengths = {"gradient_length": k2, "update_length": k1, "num_micro_batches": num_micro_batches}
    algorithm = make(student=student, **lengths, **options)
    reference = make_model("student", student, N, seed=1)
    rollouts = []
    for seed in range(3):
        on_step = hold_frames(1 + seed) if student == "cnn-lstm" else None
        roll_out(algorithm, seed, on_step=on_step)
        rollouts = [*(rollouts if with_buffer else []), recorded(algorithm)]
        reference.load_state_dict(algorithm.student.state_dict())
        algorithm.seen.clear()
        metrics = algorithm.update()
        assert_gradients(algorithm.seen, stepwise_gradients(reference, rollouts, k1, k2))
        (newest, state), losses = rollouts[-1], []
        with torch.no_grad():
            reference.reset(hidden_state=state)
            for t in range(T):
                reference.reset(newest.episode_starts[t])
                losses.append(squared_error(reference(newest.obs[t]), newest.labels["actions"][t]))
        assert metrics["behavior"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-8)


def test_steps_without_loss_do_not_count():
    algorithm = make(tail="drop")
    roll_out(algorithm, 0)
    rollout = recorded(algorithm)
    algorithm.storage.observations["state"][6, 2, 0] = torch.nan  # its labels are stored already
    reference = make_model("student", "lstm", N, seed=1)
    algorithm.update()
    expected = stepwise_gradients(reference, [rollout], 3, 3, num_loss_steps=6)
    assert_gradients(algorithm.seen, expected)
