"""What a step computes in Triton kernels, here in its interpreter, equals the plain functions."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tolerances import EXACT_FLOAT64
from support.triton_on_cpu import triton_engine_on_cpu
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils._pytree import tree_map

from rsl_tbptt.algorithms import fused
from rsl_tbptt.core import losses
from rsl_tbptt.core.losses import PolicyTerms

gaussian_terms: Any = fused.gaussian_terms
shapes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))
seeds = st.integers(0, 2**16)
clips = st.sampled_from([0.0625, 0.25, 1.5])  # a kernel gets float32


@pytest.fixture(autouse=True, scope="module")
def _interpreter():
    with triton_engine_on_cpu():
        yield


def plain_terms(mean, std, actions, old, old_log_prob, advantages, clip):
    """Return what ``fused.gaussian_terms`` returns, by torch's distributions."""
    policy = Normal(mean, std, validate_args=False)
    log_prob = policy.log_prob(actions).sum(-1)
    loss = losses.clipped_surrogate(log_prob, old_log_prob, advantages, clip)
    kl = kl_divergence(Normal(*old, validate_args=False), policy).sum(-1)
    is_clipped = losses.is_clipped(log_prob, old_log_prob, clip)
    return PolicyTerms(loss, policy.entropy().sum(-1), kl, is_clipped, log_prob)


def policy_case(shape, seed, is_parameter=False, distance=0.3) -> Any:
    """Return mean and std of a policy, and the labels of another one; float64."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    old = random(*shape), (0.3 * random(*shape)).exp()
    mean, std = old[0] + distance * random(*shape), old[1] * (distance * random(*shape)).exp()
    if is_parameter:
        std = std[0, 0]
    actions = old[0] + old[1] * random(*shape)
    return mean, std, actions, old, Normal(*old).log_prob(actions).sum(-1), random(*shape[:-1])


def results_of(function, case, clip, weights, entropy_coef, dtype=torch.float64):
    """Return the terms, and the gradients of mean and std of weighted losses; in float64."""
    mean, std, actions, old, *labels = case
    leaves = [part.to(dtype).requires_grad_() for part in (mean, std)]
    actions, *labels = (part.to(dtype) for part in (actions, *labels))
    old = tuple(part.to(dtype) for part in old)
    terms = function(leaves[0], leaves[1].expand_as(mean), actions, old, *labels, clip)
    total = terms.loss * weights.to(dtype)
    if entropy_coef:
        total = total - entropy_coef * terms.entropy
    gradients = torch.autograd.grad(total.sum(), leaves)
    return [part.detach().double() for part in (*terms, *gradients)]


@given(shape=shapes, seed=seeds, clip=clips, is_parameter=st.booleans(), has_entropy=st.booleans())
def test_the_terms_of_a_gaussian_and_their_gradients(shape, seed, clip, is_parameter, has_entropy):
    case, weights = policy_case(shape, seed, is_parameter), torch.rand(shape[:-1]).double()
    arguments = case, clip, weights, 0.01 * has_entropy
    got, expected = (results_of(each, *arguments) for each in (gaussian_terms, plain_terms))
    for ours, right in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, right, **EXACT_FLOAT64)


def test_in_float32_they_are_as_exact_as_torch():
    """That is 1e-6, and 6e-6 of KL divergences, which are small differences."""
    shape = 24, 512, 12
    case = tree_map(lambda part: part.float().double(), policy_case(shape, 0, distance=0.02))
    arguments = case, 0.25, torch.ones(shape[:-1], dtype=torch.float64), 0.01
    right = results_of(plain_terms, *arguments)
    of_each = [results_of(f, *arguments, torch.float32) for f in (gaussian_terms, plain_terms)]
    for ours, of_torch, exact in zip(*of_each, right, strict=True):
        assert (ours - exact).norm() <= 1.1 * (of_torch - exact).norm()
        assert (ours - of_torch).norm() <= 2e-6 * exact.norm()


def test_means_and_deviations_may_lie_in_one_output():
    """As those of a policy whose deviation depends on the state do."""
    mean, std, actions, old, old_log_prob, advantages = policy_case((3, 4, 2), 1)
    labels = actions, old, old_log_prob, advantages
    output = torch.stack((mean, std), -2)
    got = gaussian_terms(*output.unbind(-2), *labels, 0.25)
    torch.testing.assert_close(got, plain_terms(mean, std, *labels, 0.25), **EXACT_FLOAT64)


@pytest.mark.parametrize("index", range(7))
def test_nan_of_a_policy_reaches_the_same_terms(index):
    mean, std, actions, old, *labels = policy_case((2, 3, 2), 0)
    spoiled = mean, std, actions, *old, *labels
    spoiled[index].view(-1)[0] = torch.nan
    case, weights = (mean, std, actions, old, *labels), torch.ones(2, 3)
    got, expected = (
        results_of(f, case, 0.25, weights, 0.01) for f in (gaussian_terms, plain_terms)
    )
    assert any(part.isnan().any() for part in expected)
    for ours, right in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, right, equal_nan=True, **EXACT_FLOAT64)


@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.just(1)), seed=seeds)
@pytest.mark.parametrize("clip", [None, 0.25, 1.0])
def test_errors_of_values_and_their_gradient(clip, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    values, returns, old, weights = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    results = []
    for function in (fused.value_error, losses.value_error):
        leaf = values.clone().requires_grad_()
        errors = function(leaf, returns, old, clip)
        results.append((errors.detach(), torch.autograd.grad((weights * errors).sum(), leaf)))
    torch.testing.assert_close(*results, **EXACT_FLOAT64)


@pytest.mark.parametrize("index", range(3))
def test_nan_of_a_value_reaches_the_same_errors(index):
    labels = torch.ones(3, 2, 3, 1)
    labels[index, 0, 0] = torch.nan
    values, returns, old = labels
    errors = fused.value_error(values, returns, old, 0.25)
    expected = losses.value_error(values, returns, old, 0.25)
    assert expected[0, 0].isnan()
    torch.testing.assert_close(errors, expected, equal_nan=True)


@pytest.mark.parametrize("max_norm", [0.1, 3.0, 1e3, math.inf])
@pytest.mark.parametrize("sizes", [(3,), (2, 4), (0, 2), (1, 0)])
def test_each_model_is_clipped_by_its_norm(sizes, max_norm):
    models = [[nn.Parameter(torch.randn(2, 3)) for _ in range(size)] for size in sizes]
    clipped = [[torch.randn(2, 3) for _ in range(size)] for size in sizes]
    for model, gradients in zip(models, clipped, strict=True):
        for parameter, gradient in zip(model, gradients, strict=True):
            parameter.grad = gradient.clone()
    norms = fused.clip_gradients(clipped, max_norm)
    expected = [nn.utils.clip_grad_norm_(model, max_norm) for model in models]
    torch.testing.assert_close(norms, expected)
    torch.testing.assert_close(clipped, [[each.grad for each in model] for model in models])


def test_a_nan_in_one_model_reaches_its_norm_and_gradients_alone():
    clipped = [[torch.tensor([math.nan, 1.0])], [torch.ones(2)]]
    norms = fused.clip_gradients(clipped, 1.0)
    assert [norm.isnan().item() for norm in norms] == [True, False]
    assert clipped[0][0].isnan().all()
    assert clipped[1][0].isfinite().all()
