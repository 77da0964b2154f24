"""A signal ends a training after the runner has written a checkpoint."""

import signal
import threading
import time

import pytest
from support.inside import assert_same
from support.safe_runs import DisturbedEnv, names, send
from support.safe_runs import make_runner as make

from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.runners import STOPPED
from rsl_tbptt.signals import StopSignals

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@pytest.fixture(autouse=True)
def _python_handles_signals():
    """Set Python's handlers before and after."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return [signal.getsignal(number) for number in HANDLED]


CASES = [
    ("distillation", signal.SIGTERM, 9, SystemExit),
    ("ppo", signal.SIGUSR1, 12, SystemExit),
    ("distillation", signal.SIGINT, 7, KeyboardInterrupt),
]
"""Algorithm, signal, its step in the second rollout, and how the process ends."""


@pytest.mark.parametrize(("kind", "number", "step", "end"), CASES)
@pytest.mark.parametrize("iterations", [2, 5])
def test_a_signal_in_a_rollout_ends_the_training_after_its_iteration(
    kind, number, step, end, iterations, tmp_path, capfd
):
    before = handlers()
    runner = make(tmp_path, kind, env=DisturbedEnv({step: send(number)}), save_interval=100)
    with pytest.raises(end) as ended:
        runner.learn(iterations)
    assert repr(ended.value) in (f"SystemExit({STOPPED})", "KeyboardInterrupt()")
    assert f"{number.name}: a checkpoint is written after this" in capfd.readouterr().err
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]
    assert runner.num_iterations == 2
    assert handlers() == before
    resumed = make(tmp_path, kind, save_interval=100)
    resumed.load(str(tmp_path / "latest"))
    assert_same(*(r.alg.get_policy().state_dict() for r in (resumed, runner)))
    resumed.learn(5 - resumed.num_iterations)
    assert names(tmp_path)[-1] == "model_4.pt"


def test_without_a_folder_no_checkpoint_is_promised_and_no_restart_is_requested(capfd):
    runner = make(env=DisturbedEnv({7: send(signal.SIGTERM)}))
    with pytest.raises(SystemExit) as ended:
        runner.learn(3)
    assert (ended.value.code, runner.num_iterations) == (128 + signal.SIGTERM, 2)
    assert "without a checkpoint (no log_dir)" in capfd.readouterr().err


def test_a_second_signal_has_its_previous_effect(monkeypatch):
    now, received = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        now[0] = 0.5  # a launcher passes on a signal that its group got
        signal.raise_signal(signal.SIGUSR1)
        assert (signals.received, received) == (signal.SIGTERM, [])
        now[0] = 1.5
        signal.raise_signal(signal.SIGUSR1)
        assert received == [signal.SIGUSR1]


def test_ignored_signals_stay_ignored():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGUSR1)
        assert signals.received is None


def test_only_the_main_thread_handles_signals(tmp_path):
    before, seen = handlers(), []
    runner = make(tmp_path, env=DisturbedEnv({1: lambda: seen.append(handlers())}))
    thread = threading.Thread(target=runner.learn, args=(1,))
    thread.start()
    thread.join()
    assert seen == [before]
    assert names(tmp_path) == ["model_0.pt"]


def test_all_ranks_end_if_one_got_a_signal(tmp_path, monkeypatch):
    runner, asked = make(tmp_path), iter([0, 1])
    monkeypatch.setattr(Ranks, "sum_count", lambda *_: next(asked))
    with pytest.raises(SystemExit):
        runner.learn(5)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]
