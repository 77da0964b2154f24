"""Mini-batches of PPO: each sample once per epoch, from the state the rollout stored."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import numbered

from rsl_tbptt.algorithms.batches import Batches
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import as_tensors, select_envs
from rsl_tbptt.core.rollout import Batch, Rollout

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

plans = {
    "num_steps": st.integers(1, 10),
    "num_envs": st.integers(1, 6),
    "share": st.integers(1, 6),
    "gradient_length": st.integers(1, 12),
    "unit": st.sampled_from(["env", "window"]),
    "shuffle": st.booleans(),
}


def plan(num_steps, num_envs, share, gradient_length, unit, shuffle):
    options = PpoOptions(
        num_mini_batches=min(share, num_envs),
        gradient_length=gradient_length,
        minibatch_unit=unit,
        shuffle_envs=shuffle,
    )
    return Batches(num_steps, num_envs, options, Ranks(together=False), "cpu")


def rollout_of(index):
    return Rollout(index, {}, torch.zeros_like(index, dtype=torch.bool))


def replayed(batches, indices, index):
    """Return the numbers of the samples that the windows of a mini-batch put into the loss."""
    rollout = rollout_of(index)
    pieces = [
        Batch(rollout, first_rows).steps(window.loss_start, window.stop).obs.flatten()
        for group, (first_rows, _) in zip(batches.groups, indices.segments, strict=True)
        for window in group
    ]
    return torch.cat(pieces)


@given(**plans)
def test_each_sample_is_in_one_mini_batch_per_epoch(num_steps, num_envs, **options):
    batches = plan(num_steps, num_envs, **options)
    index = numbered(num_steps, num_envs)
    for _ in range(2):
        epoch = list(batches.draw())
        assert len(epoch) == min(options["share"], num_envs)
        samples = [replayed(batches, indices, index) for indices in epoch]
        assert torch.equal(torch.cat(samples).sort().values, index.flatten())
        for indices, numbers in zip(epoch, samples, strict=True):
            assert indices.num_samples == len(numbers) > 0
            rows = batches.rows(rollout_of(index), indices.segments)
            assert torch.equal(index.flatten()[rows].sort().values, numbers.sort().values)


@given(**plans, data=st.data())
def test_all_samples_of_chosen_environments_and_no_others(num_steps, num_envs, data, **options):
    chosen = data.draw(st.sets(st.integers(0, num_envs - 1), min_size=1))
    index = numbered(num_steps, num_envs)
    batches = plan(num_steps, num_envs, **options)
    indices = batches.of_envs(torch.tensor(sorted(chosen)))
    expected = index[:, sorted(chosen)].flatten().sort().values
    assert torch.equal(replayed(batches, indices, index).sort().values, expected)
    assert indices.num_samples == len(expected)


@given(**plans)
def test_each_segment_begins_with_the_state_before_its_first_step(num_steps, num_envs, **options):
    batches = plan(num_steps, num_envs, **options)
    index = numbered(num_steps, num_envs)
    joined = index[list(batches.state_steps)].reshape(1, -1, 1)  # (L, S * N, H)
    for indices in batches.draw():
        for first_rows, places in indices.segments:
            (state,) = as_tensors(select_envs(joined, places))
            assert torch.equal(state.flatten(), index.flatten()[first_rows])


def test_windows_are_drawn_over_time_and_environments_again_each_epoch():
    options = {"gradient_length": 2, "unit": "window"}
    shuffled = plan(8, 4, 4, shuffle=True, **options)
    torch.manual_seed(0)
    first, second = (next(iter(shuffled.draw())).segments[0] for _ in range(2))
    for first_rows, _ in (first, second):
        assert len(set((first_rows // 4).tolist())) > 1  # steps
        assert len(set((first_rows % 4).tolist())) > 1  # environments
    assert not torch.equal(first, second)
    in_order = plan(8, 4, 4, shuffle=False, **options)
    for start, indices in zip((0, 2, 4, 6), in_order.draw(), strict=True):
        first_rows, _ = indices.segments[0]
        assert first_rows.tolist() == [4 * start + env for env in range(4)]
