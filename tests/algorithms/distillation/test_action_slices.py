"""Slices of the action with a loss each: exact sums, reported by name, refused by name."""

import pytest
import torch
from support.helpers import (
    SLICES,
    absolute_error,
    make_distillation,
    make_model,
    parameters_of,
    train,
)
from torch.distributions import Bernoulli, Normal, kl_divergence

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.behavior_losses import ACTIONS, STD, resolve_behavior_loss
from rsl_tbptt.core import losses

T, N = 7, 5
JOINT, GRIPPER = SLICES


def make(**options):
    return make_distillation(TbpttDistillation, T, N, **{"gradient_length": 3, **options})


def test_binary_cross_entropy_is_that_of_the_signs():
    torch.manual_seed(0)
    actions, labels = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    labels[0, 0] = 0.0  # not positive
    commands = Bernoulli(logits=actions)
    expected = -commands.log_prob((labels > 0).double()).mean(-1)
    torch.testing.assert_close(losses.bce_of_signs(actions, labels), expected)
    assert torch.equal(
        losses.bce_of_signs(actions, 5 * labels), losses.bce_of_signs(actions, labels)
    )


@pytest.mark.parametrize("loss", ["mse", "huber", "bce", "kl", "nll", absolute_error])
def test_one_slice_of_all_actions_is_its_loss_to_the_last_bit(loss):
    results, metrics = [], {}
    for loss_type in (loss, [{"loss": loss, "actions": [0, 2], "name": "all"}]):
        algorithm = make(loss_type=loss_type, buffer_rollouts=2, num_micro_batches=2)
        metrics = train(algorithm, *range(2))
        results.append(parameters_of(algorithm))
    assert torch.equal(*results)
    assert metrics["behavior/all"] == metrics["behavior"]


def test_a_slice_has_the_loss_of_its_own_gaussians():
    student, teacher = (make_model(role, "mlp", N, seed=1) for role in ("student", "teacher"))
    torch.manual_seed(0)
    mean, label = torch.randn(2, 3, 4, 2)
    std, label_std = torch.rand(2, 3, 4, 2) + 0.5
    slices = [{"loss": "kl", "actions": [1, 2]}, {"loss": "mse", "actions": [0, 1], "coef": 3.0}]
    loss = resolve_behavior_loss(slices, student, teacher, 2)
    assert (loss.of_gaussian, loss.to_gaussian) == (True, True)
    found = loss((mean, std), {ACTIONS: label, STD: label_std})
    kl = kl_divergence(Normal(label[..., 1], label_std[..., 1]), Normal(mean[..., 1], std[..., 1]))
    error = (mean[..., 0] - label[..., 0]).square()
    torch.testing.assert_close(found.trained, kl + 3.0 * error)
    torch.testing.assert_close(found.reported["behavior/actions_1_2"], kl)
    torch.testing.assert_close(found.reported["behavior/actions_0_1"], error)
    torch.testing.assert_close(loss.per_sample((mean, std), {ACTIONS: label, STD: label_std}),
                               found.trained)  # fmt: skip


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([], "loss_type is "),
        (["mse"], r"loss_type\[0\] is 'mse'"),
        ([{"loss": "mse"}], r"loss_type\[0\] is {'loss': 'mse'}"),
        ([{**JOINT, "cof": 2.0}], r"'cof' of loss_type\[0\]: did you mean 'coef'"),
        ([{**JOINT, "actions": [1, 1]}], r"\[0\]\.actions is \[1, 1\]"),
        ([{**JOINT, "actions": [0.0, 1]}], r"\[0\]\.actions is \[0\.0, 1\]"),
        ([JOINT, {**GRIPPER, "actions": [1, 3]}], r"\[1\]\.actions is \[1, 3\], .* 2 actions"),
        ([{**JOINT, "actions": [0, 2]}, GRIPPER], r"\[1\]\.actions is \[1, 2\]"),
        ([JOINT, {**GRIPPER, "name": "joint"}], r"\[1\]\.name is 'joint'"),
        ([{**JOINT, "name": ""}], r"\[0\]\.name is ''"),
        ([{**JOINT, "coef": -1.0}], r"\[0\]\.coef is -1\.0"),
        ([{**JOINT, "loss": "mae"}], r"\[0\]\.loss is 'mae', expected one of .*'mse'"),
        ([{**JOINT, "loss": [JOINT]}], r"\[0\]\.loss is \[{"),
    ],
)
def test_bad_slices_are_refused_by_name_before_any_rollout(slices, message):
    with pytest.raises(ValueError, match=message):
        make(loss_type=slices)


def test_a_slice_of_gaussians_needs_them():
    with pytest.raises(NotImplementedError, match=r"loss_type\[1\]\.loss is 'nll', which needs"):
        make(
            loss_type=[JOINT, {**GRIPPER, "loss": "nll"}],
            student_kwargs={"distribution_cfg": None},
        )
