"""A signal ends a training between two iterations, after a checkpoint; a second one at once."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, redirect_stdout, suppress

import pytest
import torch
from support.safe_runs import DisturbedEnv, make_runner

from rsl_tbptt import signals as stop_signals
from rsl_tbptt.runners import STOPPED
from rsl_tbptt.signals import StopSignals

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """Have Python's own handler where a shell started the tests in the background, ignoring it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(number):
    return lambda: os.kill(os.getpid(), number)


def handlers():
    return [signal.getsignal(number) for number in HANDLED]


def names(folder):
    return sorted(path.name for path in folder.glob("*.pt"))


@pytest.mark.parametrize("kind", ["distillation", "ppo"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_in_a_rollout_ends_the_training_after_its_iteration(kind, number, tmp_path):
    before = handlers()
    runner = make_runner(tmp_path, kind, env=DisturbedEnv({9: send(number)}), save_interval=100)
    with pytest.raises(SystemExit) as ended:
        runner.learn(5)
    assert ended.value.code == STOPPED == 85
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]
    assert runner.num_iterations == 2
    assert handlers() == before
    resumed = make_runner(tmp_path, kind, save_interval=100)
    resumed.load(str(tmp_path / "latest"))
    assert resumed.num_iterations == 2
    of_resumed, of_runner = (r.alg.get_policy().state_dict() for r in (resumed, runner))
    assert all(torch.equal(of_resumed[name], value) for name, value in of_runner.items())
    resumed.learn(5 - resumed.num_iterations)
    assert names(tmp_path)[-1] == "model_4.pt"


def test_ctrl_c_writes_a_checkpoint_too(tmp_path, capfd):
    runner = make_runner(tmp_path, env=DisturbedEnv({7: send(signal.SIGINT)}), save_interval=100)
    with pytest.raises(KeyboardInterrupt):
        runner.learn(5)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]
    assert "SIGINT: a checkpoint is written after this iteration" in capfd.readouterr().err


def test_a_signal_in_the_last_iteration_ends_the_process_too(tmp_path):
    runner = make_runner(tmp_path, env=DisturbedEnv({11: send(signal.SIGTERM)}), save_interval=100)
    with pytest.raises(SystemExit):
        runner.learn(2)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]
    resumed = make_runner(tmp_path)
    resumed.load(str(tmp_path))
    assert resumed.num_iterations == 2


def test_before_the_first_update_nothing_is_written(tmp_path):
    runner = make_runner(tmp_path)
    runner.alg.train_mode = send(signal.SIGTERM)
    with pytest.raises(SystemExit):
        runner.learn(2)
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_without_a_folder_no_checkpoint_is_promised_and_no_script_starts_it_again(number, capfd):
    runner = make_runner(env=DisturbedEnv({7: send(number)}))
    with pytest.raises(SystemExit) as ended:
        runner.learn(3)
    assert runner.num_iterations == 2
    assert ended.value.code == 128 + number
    told = capfd.readouterr().err
    assert "the training ends after this iteration, without a checkpoint (no log_dir)" in told
    assert "is written" not in told


def run(program, *arguments):
    """Run a program in a process of its own whose output nobody reads any more; return its status.

    It reads its own pipe, and closes it by ``gone()``.
    """
    begin = "import os; r, w = os.pipe(); os.dup2(w, 1); os.dup2(w, 2); os.close(w)\n"
    begin += "gone = lambda: os.close(r)\n"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", begin + program, *map(str, arguments)]
    return subprocess.run(command, env=variables, timeout=300, check=False).returncode


SIGNALLED = """
import signal, sys
for module in sys.argv[3:]:
    __import__(module)
from rsl_tbptt.signals import StopSignals
print("in the buffer")
with StopSignals() as signals:
    gone()
    signal.raise_signal(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        print("x" * 1000)
    raise signals.end()
"""


@pytest.mark.parametrize("lines", [0, 20])
def test_a_signal_is_answered_though_nobody_reads_the_output(lines):
    assert run(SIGNALLED, signal.SIGTERM, lines) == STOPPED


@pytest.mark.parametrize(
    "imported", [[], pytest.param(["tensordict"], marks=pytest.mark.slow)], ids=len
)
def test_the_status_of_ctrl_c_is_a_failure_that_no_script_takes_for_a_stop(imported):
    status = run(SIGNALLED, signal.SIGINT, 1, *imported)
    assert status in (1, -signal.SIGINT)  # a shell's 130; tensordict makes it 1


@contextmanager
def piped_output():
    """Send this process's output into a pipe; give a function that takes its reader away."""
    reader, writer = os.pipe()
    kept = os.dup(2)
    os.dup2(writer, 2)
    try:
        with suppress(BrokenPipeError), os.fdopen(writer, "w") as stream, redirect_stdout(stream):
            yield lambda: os.close(reader)
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_training_whose_output_nobody_reads_leaves_its_checkpoint(number, tmp_path):
    def leave():
        take_away()
        signal.raise_signal(number)

    runner = make_runner(tmp_path, env=DisturbedEnv({9: leave}), save_interval=100)
    with piped_output() as take_away, pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        runner.learn(5)
    expected = SystemExit(STOPPED) if number == signal.SIGTERM else KeyboardInterrupt()
    assert repr(ended.value) == repr(expected)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]


def test_a_second_signal_does_what_it_did_before(monkeypatch):
    now, received = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGTERM)
            now[0] = 0.5  # a launcher passes on what its group was sent
            signal.raise_signal(signal.SIGUSR1)
            assert (signals.received, received) == (signal.SIGTERM, [])
            now[0] = 1.5
            signal.raise_signal(signal.SIGUSR1)
            assert received == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_second_ctrl_c_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(stop_signals, "SAME_SECONDS", 0.0)

    def twice():
        send(signal.SIGINT)()
        time.sleep(0.01)
        send(signal.SIGINT)()

    runner = make_runner(tmp_path, env=DisturbedEnv({8: twice}), save_interval=100)
    with pytest.raises(KeyboardInterrupt):
        runner.learn(5)
    assert names(tmp_path) == ["model_0.pt"]
    assert runner.num_iterations == 1


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGUSR1)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_only_the_main_thread_handles_signals(tmp_path):
    runner, before, seen = make_runner(tmp_path), handlers(), []
    runner.env = DisturbedEnv({1: lambda: seen.append(handlers())})
    thread = threading.Thread(target=runner.learn, args=(1,))
    thread.start()
    thread.join()
    assert seen == [before]
    assert names(tmp_path) == ["model_0.pt"]


def test_all_ranks_end_where_one_was_asked_to(tmp_path, monkeypatch):
    runner = make_runner(tmp_path, save_interval=100)
    asked = iter([0, 0, 1])
    monkeypatch.setattr(type(runner._ranks), "sum_count", lambda self, count, device: next(asked))
    with pytest.raises(SystemExit):
        runner.learn(5)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]
