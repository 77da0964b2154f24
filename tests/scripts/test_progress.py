"""Progress: what is read from a command's output, and the remaining time made of it."""

import io

import pytest

from scripts.pipeline import progress as progress_module
from scripts.pipeline.progress import Progress, displayed

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
    monkeypatch.setattr(progress_module.time, "monotonic", fake.monotonic)
    return fake


def test_rsl_rl_output_is_read():
    progress = Progress(expected_seconds=60.0)
    for line in RSL_RL_OUTPUT:
        progress.read(line)
    assert (progress.done, progress.total) == (5, 10)
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
    progress = Progress(expected_seconds=1.0, seconds_after=61.0, start=clock.now)
    progress.read("[progress] 2/10")
    clock.now += 10.0
    progress.read("[progress] 4/10")
    progress.read("  Mean reward: 1.5")
    assert str(progress) == " 40%  4/10  reward 1.5  left: stage 0:30, all 1:31"


def test_without_a_terminal_lines_are_spaced(clock):
    stream = io.StringIO()
    title, progress = "[1/3] " + 200 * "x", Progress(expected_seconds=60.0, start=clock.now)
    with displayed(title, progress, stream) as read:
        for number in range(25):
            read(f"[progress] {number}/25" if number > 2 else "")
            clock.now += 1.0
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == 3 * [title]
    assert [line.split("  ")[1:3] for line in lines[1:]] == [[" 40%", "10/25"], [" 80%", "20/25"]]
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def test_in_a_terminal_one_line_is_rewritten(terminal):
    progress = Progress(expected_seconds=60.0)
    with displayed("[1/3] teacher", progress, terminal) as read:
        read("[progress] 3/4")
    shown = terminal.getvalue()
    assert "[1/3] teacher" in shown
    assert "3/4  left: stage" in shown
    assert shown.endswith("\x1b[1A\x1b[2K")  # erased again


def test_a_stage_that_fails_gives_the_terminal_back(terminal):
    progress = Progress(expected_seconds=60.0)
    hidden, shown = "\x1b[?25l", "\x1b[?25h"  # the cursor

    def interrupted():
        with displayed("stage", progress, terminal):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue().count(hidden) == terminal.getvalue().count(shown) == 1
