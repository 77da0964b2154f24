"""Losses per sample, against torch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tolerances import EXACT_FLOAT64
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional

from rsl_tbptt.core import losses

shapes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))


def make(shape, seed=0, positive=False):
    values = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.abs() + 0.1 if positive else 3 * values


@given(shape=shapes)
@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (losses.mse, functional.mse_loss),
        (losses.huber, functional.huber_loss),
        (losses.from_function(lambda a, b: (a - b).abs()), functional.l1_loss),
    ],
)
def test_mean_equals_torch(loss, reference, shape):
    actions, labels = make(shape, 1), make(shape, 2)
    per_sample = loss(actions, labels)
    assert per_sample.shape == shape[:2]
    torch.testing.assert_close(per_sample.mean(), reference(actions, labels), **EXACT_FLOAT64)


@given(shape=shapes)
def test_gaussian_losses_equal_torch_distributions(shape):
    mean, std = make(shape, 1), make(shape, 2, positive=True)
    label_mean, label_std = make(shape, 3), make(shape, 4, positive=True)
    student = Independent(Normal(mean, std), 1)
    teacher = Independent(Normal(label_mean, label_std), 1)
    per_sample = losses.gaussian_kl(mean, std, label_mean, label_std)
    torch.testing.assert_close(per_sample, kl_divergence(teacher, student), **EXACT_FLOAT64)
    per_sample = losses.gaussian_nll(mean, std, label_mean)
    torch.testing.assert_close(per_sample, -student.log_prob(label_mean), **EXACT_FLOAT64)
