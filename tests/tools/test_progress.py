"""Progress: silent at first, one line on a terminal, a line now and then in a log file."""

import pytest

from rsl_tbptt.tools import progress
from rsl_tbptt.tools.progress import PATTERN, Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def go(clock, seconds, num_steps, lines):
    with Progress("steps", num_steps, lines=lines) as shown:
        for done in range(1, num_steps + 1):
            clock.now += seconds
            shown.update(done)


@pytest.mark.parametrize("lines", [True, False])
def test_commands_that_end_within_five_seconds_print_nothing(clock, capsys, lines):
    go(clock, 0.049, 100, lines)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "num_steps", "num_lines"),
    [
        (0.1, 1000, 10),  # 100 s: a line every 10 %
        (1.0, 1000, 33),  # 1000 s: a line every 30 s, 10 % are 100 s
    ],
)
def test_a_log_file_gets_a_line_now_and_then(clock, capsys, seconds, num_steps, num_lines):
    go(clock, seconds, num_steps, lines=None)  # no terminal here
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert "\r" not in err
    assert num_lines - 1 <= len(lines) <= num_lines + 1
    done, total = map(int, PATTERN.findall(lines[4])[0])
    minutes, left = divmod(round(seconds * (total - done)), 60)
    assert lines[4] == f"[progress] steps {done}/{num_steps}, {minutes}:{left:02d} left"


def test_a_terminal_has_one_line_that_is_cleared(clock, capsys):
    go(clock, 0.25, 100, lines=False)
    err = capsys.readouterr().err
    assert "\n" not in err
    texts = err.split("\r")[1:]
    assert 35 <= len(texts) <= 45  # twice a second, from five seconds on
    assert texts[0] == "[progress] steps 20/100, 0:20 left"
    assert texts[-3].endswith(" left")
    assert texts[-2:] == [" " * len(texts[-3]), ""]


def test_time_left_counts_only_work_since_the_clock_started(clock, capsys):
    shown = Progress("iterations", 100, done=50, lines=True)
    clock.now += 10
    shown.update(50)
    assert capsys.readouterr().err == ""
    shown.update(60)
    assert capsys.readouterr().err == "[progress] iterations 60/100, 0:40 left\n"
