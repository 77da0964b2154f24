"""Progress: what is read from a command's output, and the remaining time made of it."""

import io

import pytest

from scripts.pipeline import progress as progress_module
from scripts.pipeline.progress import displayed, new_bars

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


def shown(lines):
    """Return the task of a stage that has printed these lines."""
    bars = new_bars(io.StringIO())
    with displayed("stage", bars) as read:
        for line in lines:
            read(line)
        (task,) = bars.tasks
        return task.completed, task.total, task.fields["where"]


def test_rsl_rl_output_is_read():
    assert shown(RSL_RL_OUTPUT) == (5, 10, "5/10  behavior loss 0.0123  reward 6.78")


def test_own_scripts_output_is_read():
    assert shown(["[progress] 30/240"]) == (30, 240, "30/240")


def test_other_output_changes_nothing():
    lines = ("", "Learning iteration", "progress 3/4", "Mean episode length: 3.0")
    assert shown(lines) == (0, None, "starting")


def test_time_left_follows_the_pace_without_the_start_up(clock):
    bars = new_bars(io.StringIO())
    bars.get_time = clock.monotonic
    with displayed("stage", bars) as read:
        (task,) = bars.tasks
        assert task.time_remaining is None
        clock.now += 50.0  # start-up
        read("[progress] 2/10")
        clock.now += 90.0  # longer than rich looks back by default
        read("[progress] 5/10")
        assert task.time_remaining == 150.0  # 30 s per step, 5 steps
    assert bars.tasks == []


def test_without_a_terminal_lines_are_spaced(clock):
    stream = io.StringIO()
    title = "[1/3] " + 200 * "x"
    bars = new_bars(stream)
    bars.get_time = clock.monotonic
    with displayed(title, bars) as read:
        for number in range(25):
            read(f"[progress] {number}/25" if number > 2 else "")
            clock.now += 1.0
    lines = stream.getvalue().splitlines()
    assert [line.split("  ") for line in lines] == [
        [title, "starting"],
        [title, "10/25", "left: 0:15"],
        [title, "20/25", "left: 0:05"],
    ]
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


def test_in_a_terminal_a_line_for_each_stage_is_rewritten(terminal):
    with (
        new_bars(terminal) as bars,
        displayed("[1/3] teacher", bars) as one,
        displayed("[2/3] student", bars) as other,
    ):
        one("[progress] 3/4")
        other("[progress] 1/2")
        bars.refresh()
    text = terminal.getvalue()
    for part in ("[1/3] teacher", "[2/3] student", "3/4", "1/2", "left:"):
        assert part in text
    assert text.endswith("\x1b[1A\x1b[2K\x1b[?25h\r")  # erased again, and the cursor is back


def test_a_stage_that_fails_gives_the_terminal_back(terminal):
    hidden, shown = "\x1b[?25l", "\x1b[?25h"  # the cursor

    def interrupted():
        with new_bars(terminal) as bars, displayed("stage", bars):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue().count(hidden) == terminal.getvalue().count(shown) == 1
