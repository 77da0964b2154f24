"""The laws of accumulation: exactness, invariance, isolation, completeness, scale."""

import dataclasses
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tbptt_reference import Policy, full_bptt_by_episode, make_rollout, stepwise_gradients
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.core import hidden_state, losses
from rsl_tbptt.core.accumulate import (
    SampleLosses,
    accumulate_group,
    best_num_micro_batches,
    best_num_windows,
    split_envs,
)
from rsl_tbptt.core.rollout import Batch, Rollout
from rsl_tbptt.core.scan import CELLS
from rsl_tbptt.core.windows import num_steps_of_full_group, tbptt_schedule

DIVISOR = 7.0
sizes = {
    "num_steps": st.integers(1, 10),
    "num_envs": st.integers(1, 4),
    "done_rate": st.sampled_from([0.0, 0.3, 1.0]),
    "rnn_type": st.sampled_from([name.lower() for name in CELLS]),
}


def mse(outputs, labels):
    error = losses.mse(outputs[0], labels["actions"])
    return SampleLosses(error, {"error": error})


def group_gradients(policy, rollout, state, k2, k1=None, parts=1, replay=None, at_once=1):
    """Return the gradient of each optimiser step at fixed parameters, and the final state."""
    gradients, replay = [], replay or policy.replay
    for group in tbptt_schedule(rollout.num_steps, k2, k1):
        policy.zero_grad()
        state, _ = accumulate_group(
            group, rollout, state, replay, mse, DIVISOR, parts, windows_at_once=at_once
        )
        gradients.append(policy.gradient().clone())
    return gradients, state


@given(**sizes, extra=st.integers(0, 3))
def test_windows_as_long_as_the_rollout_give_full_bptt(
    num_steps, num_envs, done_rate, rnn_type, extra
):
    policy = Policy(rnn_type, num_layers=2)
    rollout = make_rollout(num_steps, num_envs, done_rate)
    state = policy.random_state(num_envs)
    (gradient,), _ = group_gradients(policy, rollout, state, num_steps + extra)
    expected = full_bptt_by_episode(policy, rollout, state, DIVISOR)
    torch.testing.assert_close(gradient, expected, **EXACT_FLOAT64)


@pytest.mark.parametrize("engine", ["compiled", "reference"])
@given(
    **sizes,
    k1=st.integers(1, 10),
    k2=st.integers(1, 10),
    parts=st.integers(1, 5),
    at_once=st.integers(1, 4),
)
def test_shorter_windows_equal_the_stepwise_reference_and_carry_the_state(
    engine, num_steps, num_envs, done_rate, rnn_type, k1, k2, parts, at_once
):
    """For any number of micro-batches and of windows at once."""
    policy = Policy(rnn_type, num_layers=2)
    rollout = make_rollout(num_steps, num_envs, done_rate)
    state, replay = policy.random_state(num_envs), partial(policy.replay, engine=engine)
    gradients, final_state = group_gradients(
        policy, rollout, state, k2, k1, parts=parts, replay=replay, at_once=at_once
    )
    expected = stepwise_gradients(policy, [(rollout, state)], k1, k2, DIVISOR)
    for got, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, want, **EXACT_FLOAT64)
    with torch.no_grad():
        _, continuous = policy.replay(rollout.obs, state, rollout.episode_starts)
    torch.testing.assert_close(final_state, continuous, **EXACT_FLOAT64)
    assert not any(tensor.requires_grad for tensor in hidden_state.as_tensors(final_state))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e6])
@pytest.mark.parametrize("parts", [1, 3])
def test_poison_in_a_past_episode_leaves_the_gradient_of_the_next(poison, parts):
    policy, rollout = Policy("lstm", 2), make_rollout(6, 3, 0.0)
    rollout.episode_starts[2, 1] = True
    state = policy.random_state(3)
    expected, _ = group_gradients(policy, rollout, state, 2, parts=parts)
    rollout.obs[:2, 1] = poison
    state = hidden_state.clone(state)
    for tensor in hidden_state.as_tensors(state):
        tensor[:, 1] = poison
    gradients, final_state = group_gradients(policy, rollout, state, 2, parts=parts)
    assert not torch.allclose(gradients[0], expected[0])  # the poison is in this window
    for got, want in zip(gradients[1:], expected[1:], strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert all(torch.isfinite(tensor).all() for tensor in hidden_state.as_tensors(final_state))


@given(
    num_steps=st.integers(1, 12),
    k1=st.none() | st.integers(1, 14),
    k2=st.integers(1, 14),
    parts=st.integers(1, 4),
)
def test_each_sample_enters_the_loss_once_and_a_full_group_is_a_mean(num_steps, k1, k2, parts):
    num_envs = 3
    seen = torch.zeros(num_steps, num_envs)
    rollout = make_rollout(num_steps, num_envs, 0.3)
    index = torch.arange(num_steps * num_envs, dtype=torch.float64).view(num_steps, num_envs, 1)
    rollout = Rollout(rollout.obs, {"index": index}, rollout.episode_starts)
    policy = Policy()

    def counting_loss(outputs, labels):
        seen.view(-1)[labels["index"].long().flatten()] += 1
        per_sample = outputs[0].mean(-1)
        per_sample.register_hook(lambda gradient: weights.extend(gradient.flatten().tolist()))
        return SampleLosses(per_sample)

    weights: list[float] = []
    divisor = num_steps_of_full_group(num_steps, k2, k1) * num_envs
    state = policy.random_state(num_envs)
    for group in tbptt_schedule(num_steps, k2, k1):
        state, _ = accumulate_group(
            group, rollout, state, policy.replay, counting_loss, divisor, parts
        )
        assert group[0].loss_start > 0 or sum(weights) == pytest.approx(1.0)  # a full group's
    assert (seen == 1).all()
    assert weights == pytest.approx([1 / divisor] * num_steps * num_envs)


@given(**sizes, k2=st.integers(1, 6), parts=st.integers(1, 3))
def test_weights_and_coefficient_scale_each_sample(
    num_steps, num_envs, done_rate, rnn_type, k2, parts
):
    policy, state = Policy(rnn_type), None
    rollout = make_rollout(num_steps, num_envs, done_rate)
    weights = torch.arange(1.0, num_steps * num_envs + 1, dtype=torch.float64)
    weights = weights.view(num_steps, num_envs)
    (group,) = tbptt_schedule(num_steps, k2, num_steps)

    def weighted(values):
        return dataclasses.replace(rollout, labels={**rollout.labels, "weight": values})

    def loss(outputs, samples):
        of_samples = mse(outputs, samples)
        trained = samples["weight"] * of_samples.trained
        return dataclasses.replace(of_samples, trained=trained)

    arguments = (policy.replay, loss, DIVISOR, parts, 0.3)
    _, sums = accumulate_group(group, weighted(weights), state, *arguments)
    got, expected = policy.gradient().clone(), 0.0
    for t in range(num_steps):
        for env in range(num_envs):
            only = torch.zeros(num_steps, num_envs, dtype=torch.float64)
            only[t, env] = 1.0
            policy.zero_grad()
            accumulate_group(group, weighted(only), state, policy.replay, loss, DIVISOR)
            expected = expected + 0.3 * weights[t, env] * policy.gradient()
    torch.testing.assert_close(got, expected, **EXACT_FLOAT64)
    _, unweighted = accumulate_group(group, rollout, state, policy.replay, mse, DIVISOR)
    torch.testing.assert_close(sums["error"], unweighted["error"], **EXACT_FLOAT64)


def test_episode_starts_are_the_dones_of_the_step_before():
    dones = torch.tensor([[0, 1], [1, 0], [0, 1]], dtype=torch.bool)
    rollout = Rollout.from_dones(torch.zeros(3, 2), {}, dones)
    expected = torch.tensor([[0, 0], [0, 1], [1, 0]], dtype=torch.bool)
    assert torch.equal(rollout.episode_starts, expected)


def test_batch_copy_the_steps_of_their_environment_from_their_first_step_on():
    rollout = make_rollout(7, 3, 0.3)
    batch = Batch(rollout, 3 * torch.tensor([0, 4, 2, 4]) + torch.tensor([2, 0, 2, 1]))
    piece = batch.envs(slice(1, 4)).steps(1, 3)
    for column, (first, env) in enumerate([(4, 0), (2, 2), (4, 1)]):
        steps = slice(first + 1, first + 3)
        assert torch.equal(piece.obs[:, column], rollout.obs[steps, env])
        assert torch.equal(
            piece.labels["actions"][:, column], rollout.labels["actions"][steps, env]
        )
        assert torch.equal(piece.episode_starts[:, column], rollout.episode_starts[steps, env])


@given(num_envs=st.integers(1, 50), parts=st.integers(1, 60))
def test_micro_batches_are_balanced_and_complete(num_envs, parts):
    slices = split_envs(num_envs, parts)
    sizes = [s.stop - s.start for s in slices]
    assert [e for s in slices for e in range(s.start, s.stop)] == list(range(num_envs))
    assert max(sizes) - min(sizes) <= 1
    assert len(slices) == min(parts, num_envs)


@given(num_envs=st.integers(1, 10_000), num_steps=st.integers(1, 200))
def test_micro_batches_of_a_cpu_are_not_too_small_and_other_devices_have_one(num_envs, num_steps):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    num_micro_batches = best_num_micro_batches(num_envs, num_steps, 4096, cpu)
    assert num_envs / num_micro_batches >= min(num_envs, 128)
    assert best_num_micro_batches(num_envs, num_steps, 4096, cuda) == 1
    # A sample that no cache holds, in short and long windows: 2048 samples, then 512 environments.
    assert [best_num_micro_batches(10_240, steps, 2**60, cpu) for steps in (1, 200)] == [5, 20]


@pytest.mark.parametrize(("device", "most"), [("cpu", 4096), ("cuda", 32_768)])
@given(num_envs=st.integers(1, 10_000), num_steps=st.integers(1, 200))
def test_windows_run_at_once_up_to_a_number_of_samples(device, most, num_envs, num_steps):
    at_once = best_num_windows(num_envs, num_steps, torch.device(device))
    assert at_once == 1 or num_envs * num_steps * at_once <= most
    assert num_envs * num_steps * (at_once + 1) > most
