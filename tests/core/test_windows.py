"""The schedule of truncated BPTT(k1, k2)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsl_tbptt.core.windows import Window, joined, num_steps_of_full_group, tbptt_schedule

lengths = st.integers(1, 40)


@given(
    num_steps=lengths, k2=lengths, k1=st.none() | lengths, tail=st.sampled_from(["flush", "drop"])
)
def test_windows_hand_over_the_state_where_the_next_one_starts(num_steps, k2, k1, tail):
    windows = [w for group in tbptt_schedule(num_steps, k2, k1, tail) for w in group]
    assert windows[0].start == 0
    for window, following in itertools.pairwise(windows):
        assert window.start <= window.carry == following.start <= window.stop
    assert windows[-1].carry == windows[-1].stop == num_steps


@given(num_steps=lengths, k2=lengths, k1=st.none() | lengths)
def test_gradient_flows_back_k2_steps_and_the_optimiser_steps_every_k1(num_steps, k2, k1):
    schedule = tbptt_schedule(num_steps, k2, k1)
    full = num_steps_of_full_group(num_steps, k2, k1)
    for group in schedule:
        assert all(1 <= w.stop - w.start <= k2 for w in group)
        first, last = group[0].loss_start, group[-1].stop
        assert first % full == 0
        assert last - first == full or last == num_steps
        newest = group[-1]
        if full < min(k2, num_steps):  # overlapping: as much history as exists
            assert newest.start == max(0, newest.stop - k2)


@pytest.mark.parametrize(
    ("arguments", "windows"),
    [
        ((8, 3), [(0, 0, 3, 3), (3, 3, 6, 6), (6, 6, 8, 8)]),
        ((8, 5, 3), [(0, 0, 3, 1), (1, 3, 6, 3), (3, 6, 8, 8)]),
        ((8, 3, None, "drop"), [(0, 0, 3, 3), (3, 3, 6, 6), (6, 8, 8, 8)]),  # forward only
    ],
)
def test_schedules_by_hand(arguments, windows):
    assert tbptt_schedule(*arguments) == [(Window(*window),) for window in windows]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3), "num_steps is 0"),
        ((8, 0), "gradient_length is 0, expected at least 1"),
        ((8, 3, -1), "update_length is -1"),
        ((8, 3, None, "keep"), "tail is 'keep', expected 'flush' or 'drop'"),
    ],
)
def test_invalid_lengths_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tbptt_schedule(*arguments)


@given(num_steps=lengths, k2=lengths, k1=lengths, num_windows=st.integers(1, 5))
def test_joined_windows_are_the_same_windows(num_steps, k2, k1, num_windows):
    for group in tbptt_schedule(num_steps, k2, k1):
        run = joined(group, num_windows)
        assert all(len(window.cuts) < num_windows for window in run)
        starts = [start for window in run for start in (window.start, *window.cuts)]
        assert starts == [window.start for window in group]
        assert [w.loss_start for w in run] == [
            w.loss_start for w in group if w.start in {r.start for r in run}
        ]
        assert run[-1].stop == group[-1].stop
        assert [window.carry for window in run] == [w.start for w in run[1:]] + [group[-1].carry]


def test_windows_without_loss_or_with_overlap_are_not_joined():
    without_loss = (Window(0, 2, 2, carry=2), Window(2, 2, 5, carry=5))
    assert joined(without_loss, 9) == without_loss
    overlapping = (Window(0, 0, 3, carry=1), Window(1, 3, 6, carry=4), Window(4, 6, 8, carry=8))
    assert joined(overlapping, 9) == overlapping
    later_loss = (Window(0, 0, 3, carry=3), Window(3, 5, 6, carry=6))
    assert joined(later_loss, 9) == later_loss
