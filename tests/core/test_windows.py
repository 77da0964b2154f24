"""The schedule of truncated BPTT(k1, k2)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsl_tbptt.core.windows import Window, num_steps_of_full_group, tbptt_schedule

lengths = st.integers(1, 40)


@given(num_steps=lengths, k2=lengths, k1=st.none() | lengths)
def test_each_step_enters_the_loss_exactly_once_in_order(num_steps, k2, k1):
    schedule = tbptt_schedule(num_steps, k2, k1)
    steps = [t for group in schedule for w in group for t in range(w.loss_start, w.stop)]
    assert steps == list(range(num_steps))


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
        if full < min(k2, num_steps):  # overlapping: as much history as there is
            assert newest.start == max(0, newest.stop - k2)


def test_the_usual_case_by_hand():
    assert tbptt_schedule(8, 3) == [
        (Window(0, 0, 3, 3),),
        (Window(3, 3, 6, 6),),
        (Window(6, 6, 8, 8),),
    ]


def test_accumulation_by_hand():
    assert tbptt_schedule(8, 3, 6) == [
        (Window(0, 0, 3, 3), Window(3, 3, 6, 6)),
        (Window(6, 6, 8, 8),),
    ]


def test_overlapping_windows_by_hand():
    assert tbptt_schedule(8, 5, 3) == [
        (Window(0, 0, 3, 1),),
        (Window(1, 3, 6, 3),),
        (Window(3, 6, 8, 8),),
    ]


def test_drop_runs_leftover_steps_forward_only():
    schedule = tbptt_schedule(8, 3, tail="drop")
    assert schedule[-1] == (Window(6, 8, 8, 8),)
    assert schedule[-1][0].num_loss_steps == 0


def test_a_rollout_shorter_than_the_lengths_is_one_full_group():
    assert tbptt_schedule(8, 15) == tbptt_schedule(8, 15, tail="drop") == [(Window(0, 0, 8, 8),)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3), "num_steps is 0"),
        ((8, 0), "gradient_length is 0, expected at least 1"),
        ((8, 3, -1), "update_length is -1"),
        ((8, 3, None, "keep"), "tail is 'keep', expected 'flush' or 'drop'"),
    ],
)
def test_refuses_lengths_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        tbptt_schedule(*arguments)
