"""A replay buffer keeps each camera frame once: whole sequences, uniformly, within its limit."""

import pytest
import torch
from support.helpers import hold_frames, make_distillation, roll_out, train
from support.inside import assert_same, everything
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.frames import deduplicate_frames, separate_frames
from rsl_tbptt.algorithms.replay_buffer import ReplayBuffer
from rsl_tbptt.core.rollout import Rollout

T, N = 6, 5


GROUPS = {"camera": lambda period: period, "depth": lambda period: 7 - period}
"""Periods of the frames of two groups: one is slow where the other is fast."""


def frames_of(number, period):
    """Return the frames of a sequence, shape (T, 1, 2): the sequence's number and the frame's."""
    phase = number % period
    frame = torch.tensor([(step + phase) // period for step in range(T)])
    return torch.stack((torch.full((T,), number), frame), dim=-1).to(torch.int16).unsqueeze(1)


def numbered_rollout(first, period):
    """Return a rollout with numbered sequences and frames, and the state before it."""
    numbers = torch.arange(first, first + N)
    steps = numbers.float().expand(T, N).unsqueeze(-1)
    frames = {
        group: torch.stack([frames_of(int(n), period_of(period)) for n in numbers], dim=1)
        for group, period_of in GROUPS.items()
    }
    obs = separate_frames(TensorDict({"policy": steps, **frames}, [T, N]), [*GROUPS])
    deduplicate_frames(obs)
    dones = torch.zeros(T, N, dtype=torch.bool)
    return Rollout.from_dones(obs, {"actions": steps}, dones), numbers.float().view(1, -1, 1)


def empty(capacity, num_frames):
    """Return a buffer with pools of frames; those of the second group are large by default."""
    of_camera, of_depth = num_frames if isinstance(num_frames, tuple) else (num_frames, 100_000)
    pools = {"camera": of_camera, "depth": of_depth}
    return ReplayBuffer(capacity, *numbered_rollout(0, 1), pools)


def filled(capacity, num_frames, periods, check=lambda buffer, index: None):
    buffer = empty(capacity, num_frames)
    for index, period in enumerate(periods):
        buffer.put(*numbered_rollout(index * N, period))
        check(buffer, index)
        buffer.keep_newest(T, torch.arange(N))
    return buffer


def kept_numbers(buffer):
    """Return the numbers of the sequences of the past, in the order of their columns."""
    return buffer.state[0, buffer.past, 0].long()


def numbers_of(buffer, columns, period_of):
    """Return which sequences are in some columns, after checking that each is whole."""
    obs = buffer.rollout.obs[:, columns]
    numbers = buffer.state[0, columns, 0].int().tolist()
    for group, of_group in GROUPS.items():
        seen = obs.frames[group][obs.steps[group]]
        assert seen.dtype == torch.int16
        for column, number in enumerate(numbers):
            expected = frames_of(number, of_group(period_of(number)))
            assert torch.equal(seen[:, column], expected)
    for column, number in enumerate(numbers):
        assert (obs.steps["policy"][:, column, 0] == number).all()
        assert (buffer.rollout.labels["actions"][:, columns][:, column, 0] == number).all()
    return numbers


@pytest.mark.parametrize("num_frames", [(T * N, 1000), (1000, T * N), (70, 90), (1000, 1000)])
@pytest.mark.parametrize("capacity", [3, 12, 100])
def test_kept_sequences_are_complete_next_to_the_newest_rollout(capacity, num_frames):
    torch.manual_seed(0)
    periods = [6, 3, 1, 2, 6, 1, 3, 6, 6]
    limits = []

    def period_of(number):
        return periods[number // N]

    def check(buffer, index):
        kept = numbers_of(buffer, buffer.past, period_of)
        assert len(set(kept)) == len(kept)
        assert max(kept, default=-1) < index * N
        newest = numbers_of(buffer, buffer.newest, period_of)
        assert newest == [*range(index * N, (index + 1) * N)]
        for group, most in zip(GROUPS, num_frames, strict=True):
            used = buffer.rollout.obs.steps[group][:, torch.cat((buffer.past, buffer.newest))]
            assert len(used.unique()) <= most
        assert (buffer._keys[: buffer.num_kept] < buffer._key_limit).all()
        limits.append(buffer._key_limit)

    buffer = filled(capacity, num_frames, periods, check=check)
    assert limits == sorted(limits, reverse=True)
    if num_frames == (1000, 1000):
        assert buffer.num_kept == min(capacity, len(periods) * N)
        assert limits[-1] == 1.0


def is_uniform(counts, share, trials, most):
    """Return whether a chi-square test finds that all were counted equally often."""
    # Counts of one trial are negatively correlated, which makes it a little too strict.
    return ((counts - trials * share).square() / (trials * share * (1 - share))).sum() < most


@pytest.mark.parametrize(
    ("capacity", "num_frames", "periods", "compared", "most"),
    [
        # 29 degrees of freedom: exceeded by chance in 0.35 % of all seeds.
        (8, 1000, [6] * 6, range(6), 53.7),
        # The pool of frames is full; sequences of one kind are compared, and the newest ones wait
        # for room. 19 degrees of freedom: exceeded by chance in 0.5 % of all seeds.
        (100, 45, [6, 6, 1, 6, 6, 6], [0, 1, 3, 4], 38.6),
    ],
)
def test_all_sequences_are_equally_likely_to_be_kept(capacity, num_frames, periods, compared, most):
    torch.manual_seed(0)
    trials, counts = 500, torch.zeros(len(periods) * N)
    for _ in range(trials):
        counts[kept_numbers(filled(capacity, num_frames, periods))] += 1
    counts = counts.view(len(periods), N)[list(compared)].flatten()
    share = counts.mean() / trials
    assert 0.1 < share < 0.9
    assert is_uniform(counts, share, trials, most)


def test_a_saved_buffer_has_its_frames_once_and_is_restored_completely():
    torch.manual_seed(0)
    buffer = filled(12, 70, [6, 1, 3])
    saved = buffer.state_dict()
    for group, frames in saved["frames"].items():
        assert len(frames) == len(buffer.rollout.obs.steps[group][:, buffer.past].unique())
    periods = [6, 1, 3]
    for capacity, num_frames in ((12, 70), (20, 200), (4, 40), (12, 30)):
        other = empty(capacity, num_frames)
        other.load_state_dict(saved)
        kept = numbers_of(other, other.past, lambda number: periods[number // N])
        by_key = kept_numbers(buffer)[saved["keys"].argsort()].tolist()
        assert {*kept} == {*by_key[: len(kept)]}
        assert 0 < len(kept) <= capacity
        other.put(*numbered_rollout(100 * N, 1))
        assert numbers_of(other, other.newest, lambda _: 1) == [*range(500, 500 + N)]
    saved["frames"]["camera"] = torch.zeros(5, 1, 3)
    with pytest.raises(ValueError, match="set save_buffer to False to begin with an empty one"):
        buffer.load_state_dict(saved)
    assert buffer.num_kept == 12


def make(**options):
    chosen = {"gradient_length": 3, "num_mini_batches": 2, "buffer_rollouts": 400, **options}
    return make_distillation(TbpttDistillation, T, N, student="cnn-gru", **chosen)


def test_buffer_gb_is_filled_and_holds_more_sequences_of_a_slow_camera():
    capacities = {}
    for period in (1, 3):
        algorithm = make(buffer_gb=3e-5)
        roll_out(algorithm, 0, on_step=hold_frames(period))
        algorithm.update()
        buffer = algorithm.experience.buffer
        tensors = [*buffer._tensors.values(), buffer._keys, buffer.rollout.labels["newest"]]
        taken = sum(each.nbytes for each in (*tensors, *buffer.rollout.obs.frames.values()))
        assert 2.7e4 < taken <= 3e4
        capacities[period] = buffer.capacity
    assert capacities[3] > 1.4 * capacities[1]


def test_a_buffer_that_did_not_fit_once_is_restored(monkeypatch):
    """After the first rollout shows the camera's rate, the divided buffer may not fit."""
    algorithm = make(buffer_gb=5e-5)
    before = everything(algorithm)

    def failing(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", failing)
        undone = pytest.raises(torch.OutOfMemoryError, match="one sequence at a time")
        with pytest.warns(UserWarning, match="ran out of memory"), undone:
            train(algorithm, 0, on_step=hold_frames(3))
    assert_same(everything(algorithm), before)
    assert "buffer" not in train(algorithm, 1, on_step=hold_frames(3))
    assert "buffer" in train(algorithm, 3, on_step=hold_frames(3))
