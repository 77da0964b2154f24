"""Mini-batches of PPO: each sample once per epoch, from the state the rollout stored."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import MEMORIES, make_ppo, numbered
from support.ppo_reference import roll_out_recording

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.algorithms.batches import Batches
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.rollout import Rollout

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

plans = {
    "num_steps": st.integers(1, 10),
    "num_envs": st.integers(1, 6),
    "share": st.integers(1, 6),
    "gradient_length": st.integers(1, 12),
    "unit": st.sampled_from(["env", "window"]),
    "burn_in": st.integers(0, 5),
    "shuffle": st.booleans(),
}


def plan(num_steps, num_envs, share, gradient_length, unit, burn_in, shuffle, device="cpu"):
    options = PpoOptions(
        num_mini_batches=min(share, num_envs),
        gradient_length=gradient_length,
        minibatch_unit=unit,
        burn_in_length=burn_in if unit == "window" else 0,
        shuffle_envs=shuffle,
    )
    return Batches(num_steps, num_envs, options, Ranks(together=False), device)


def rollout_of(index):
    return Rollout(index, {}, torch.zeros_like(index, dtype=torch.bool))


def replayed(mini_batch, rollout):
    """Return the numbers of the samples that the windows of a mini-batch put into the loss."""
    pieces = [
        part.of(rollout).steps(window.loss_start, window.stop).obs.flatten()
        for part in mini_batch.parts
        for window in part.group
    ]
    return torch.cat(pieces)


@given(**plans)
def test_each_sample_is_in_one_mini_batch_per_epoch(num_steps, num_envs, **options):
    mini_batches = plan(num_steps, num_envs, **options)
    index = numbered(num_steps, num_envs)
    for _ in range(2):
        epoch = list(mini_batches.draw())
        assert len(epoch) == min(options["share"], num_envs)
        samples = [replayed(mini_batch, rollout_of(index)) for mini_batch in epoch]
        assert torch.equal(torch.cat(samples).sort().values, index.flatten())
        for mini_batch, numbers in zip(epoch, samples, strict=True):
            assert mini_batch.num_samples == len(numbers) > 0
            rows = mini_batch.loss_rows(rollout_of(index))
            assert torch.equal(index.flatten()[rows].sort().values, numbers.sort().values)


@given(**plans, data=st.data())
def test_all_samples_of_chosen_environments_and_no_others(num_steps, num_envs, data, **options):
    chosen = data.draw(st.sets(st.integers(0, num_envs - 1), min_size=1))
    index = numbered(num_steps, num_envs)
    mini_batch = plan(num_steps, num_envs, **options).of_envs(torch.tensor(sorted(chosen)))
    expected = index[:, sorted(chosen)].flatten().sort().values
    assert torch.equal(replayed(mini_batch, rollout_of(index)).sort().values, expected)
    assert mini_batch.num_samples == len(expected)


@given(**plans)
def test_each_segment_begins_with_the_state_before_its_first_step(num_steps, num_envs, **options):
    mini_batches = plan(num_steps, num_envs, **options)
    index = numbered(num_steps, num_envs)
    joined = index[list(mini_batches.state_steps)].reshape(1, -1, 1)  # (L, S * N, H)
    for mini_batch in mini_batches.draw():
        for part in mini_batch.parts:
            begins = index[part.first_steps, part.env_indices]
            (state,) = as_tensors(part.state(joined))
            assert torch.equal(state.flatten(), begins)


def test_windows_are_drawn_over_time_and_environments_again_each_epoch():
    options = {"gradient_length": 2, "unit": "window", "burn_in": 0}
    shuffled = plan(8, 4, 4, shuffle=True, **options)
    torch.manual_seed(0)
    first, second = (next(shuffled.draw()).parts[0] for _ in range(2))
    for part in (first, second):
        assert len(set(part.first_steps.tolist())) > 1
        assert len(set(part.env_indices.tolist())) > 1
    assert not torch.equal(first.state_indices, second.state_indices)
    in_order = plan(8, 4, 4, shuffle=False, **options)
    for start, mini_batch in zip((0, 2, 4, 6), in_order.draw(), strict=True):
        assert mini_batch.parts[0].first_steps.tolist() == [start] * 4
        assert mini_batch.parts[0].env_indices.tolist() == [0, 1, 2, 3]


def test_all_indices_are_made_on_the_device_of_the_update():
    mini_batches = plan(7, 4, 2, 3, "window", 1, True, device="meta")
    chosen = mini_batches.of_envs(torch.arange(2, device="meta"))
    for mini_batch in (chosen, *mini_batches.draw()):
        for part in mini_batch.parts:
            assert part.first_steps.is_meta
            assert part.env_indices.is_meta
            assert part.state_indices.is_meta


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0]),
        ({"minibatch_unit": "window"}, [0, 3, 6]),
        ({"minibatch_unit": "window", "burn_in_length": 1}, [0, 2, 5]),
        ({"minibatch_unit": "window", "burn_in_length": 4}, [0, 2]),
    ],
)
@pytest.mark.parametrize("models", MEMORIES)
def test_a_rollout_keeps_one_state_or_one_per_window(models, options, steps):
    algorithm = make_ppo(TbpttPPO, 8, 4, models, models, gradient_length=3, **options)
    states = roll_out_recording(algorithm, 0, done_rate=0.3)
    for kept, step in zip(algorithm.states, steps, strict=True):
        for one, other in zip(kept, states[step], strict=True):
            for tensor, expected in zip(as_tensors(one), as_tensors(other), strict=True):
                assert torch.equal(tensor, expected)
