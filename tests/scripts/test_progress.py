"""Progress: what is read from a command's output, and the remaining time made of it."""

import io

import _progress
import pytest
from _progress import Display, Progress, describe

RSL_RL_OUTPUT = (
    "################################################################################",
    "\x1b[1m                      Learning iteration 4/10                      \x1b[0m ",
    "",
    "                    Mean behavior loss: 0.0123",
    "                           Mean reward: 6.78",
    "                   Mean episode length: 25.77",
    "                                   ETA: 0:00:03",
)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    fake = Clock()
    monkeypatch.setattr(_progress.time, "monotonic", fake.monotonic)
    return fake


def test_rsl_rl_output_is_read():
    progress = Progress(expected_seconds=60.0)
    for line in RSL_RL_OUTPUT:
        progress.read(line)
    assert (progress.done, progress.total) == (5, 10)
    assert progress.share() == 0.5
    assert progress.metrics == {"behavior loss": "0.0123", "reward": "6.78"}


def test_own_scripts_output_is_read():
    progress = Progress(expected_seconds=60.0)
    progress.read("[progress] 30/240")
    assert (progress.done, progress.total) == (30, 240)


def test_other_output_changes_nothing():
    progress = Progress(expected_seconds=60.0)
    for line in ("", "Learning iteration", "progress 3/4", "Mean episode length: 3.0"):
        progress.read(line)
    assert (progress.done, progress.total, progress.metrics) == (0, 0, {})


def test_time_left_is_the_guess_before_the_first_iteration(clock):
    progress = Progress(expected_seconds=60.0, start=clock.now)
    assert progress.seconds_left(clock.now + 20.0) == 40.0
    assert progress.seconds_left(clock.now + 90.0) == 0.0


def test_time_left_follows_the_pace_without_the_start_up(clock):
    progress = Progress(expected_seconds=1.0, start=clock.now)
    clock.now += 50.0  # start-up
    progress.read("[progress] 2/10")
    clock.now += 9.0
    progress.read("[progress] 5/10")
    assert progress.seconds_left(clock.now) == 15.0  # 3 s per step, 5 steps


def test_line_names_place_metrics_and_both_times(clock):
    progress = Progress(expected_seconds=1.0, start=clock.now)
    progress.read("[progress] 2/10")
    clock.now += 10.0
    progress.read("[progress] 4/10")
    progress.read("  Mean reward: 1.5")
    line = describe("[1/3] teacher", progress, 61.0, clock.now)
    assert line == "[1/3] teacher   40%  4/10  reward 1.5  left: stage 0:30, all 1:31"


def test_without_a_terminal_lines_are_spaced(clock):
    stream = io.StringIO()
    display, progress = Display(stream), Progress(expected_seconds=60.0, start=clock.now)
    for _ in range(25):
        display.show("stage", progress, 0.0)
        clock.now += 1.0
    assert stream.getvalue().count("\n") == 3
    assert "\r" not in stream.getvalue()


def test_in_a_terminal_one_line_is_rewritten(clock):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    display, progress = Display(stream), Progress(expected_seconds=60.0, start=clock.now)
    for _ in range(3):
        display.show("stage", progress, 0.0)
    display.close("done")
    assert stream.getvalue().count("\r") == 4
    assert stream.getvalue().count("\n") == 1
