"""A signal ends a training after the runner or the algorithm has written a checkpoint."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from support.safe_runs import RUNNERS, STEPS, STOCK, DisturbedEnv, assert_same, names, send
from support.safe_runs import make_runner as make

from rsl_tbptt.checkpoints.reading import latest_checkpoint
from rsl_tbptt.checkpoints.writing import NotWrittenError
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.runners import STOPPED
from rsl_tbptt.signals import StopSignals

HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@pytest.fixture(autouse=True)
def _python_handles_signals():
    """Set Python's handlers before and after, because a stock runner does not restore them."""
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


UNREAD = """
import os, signal
reader, writer = os.pipe()
os.dup2(writer, 1), os.dup2(writer, 2), os.close(writer)
from rsl_tbptt.signals import StopSignals
print("in the buffer")
with StopSignals() as signals:
    os.close(reader)
    signal.raise_signal(signal.SIGTERM)
    for _ in range(20):
        print("x" * 1000)
    raise signals.end()
"""


def test_a_signal_is_handled_even_if_the_output_is_closed():
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-c", UNREAD], env=variables, timeout=300, check=False)
    assert ended.returncode == STOPPED == 85


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
    runners, asked = (make(tmp_path), make_stock(tmp_path, "ppo", 1)), iter([0, 1, 0, 1])
    monkeypatch.setattr(Ranks, "sum_count", lambda *_: next(asked))
    for runner in runners:
        with pytest.raises(SystemExit):
            runner.learn(5)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt", "safe_0.pt", "safe_1.pt"]


# The rest tests safe_checkpoint_interval: the algorithm writes files, under stock runners too.


def make_stock(folder, kind, interval, at=None, log_dir=None, runner_class=None):
    """Build a runner whose environment names ``folder`` as Isaac Lab's does."""
    env = DisturbedEnv(at or {})
    env.cfg = SimpleNamespace(log_dir=folder and str(folder))
    options = {"safe_checkpoint_interval": interval}
    return make(log_dir, kind, runner_class or STOCK[kind], algorithm=options, env=env)


@pytest.mark.parametrize("kind", STOCK)
def test_each_file_is_like_the_runners_and_loads_there(kind, tmp_path):
    make_stock(tmp_path, kind, 1, log_dir=tmp_path).learn(3)
    assert names(tmp_path) == [*(f"model_{it}.pt" for it in range(3)), "safe_1.pt", "safe_2.pt"]
    ours, stock = (torch.load(tmp_path / f"{line}_2.pt") for line in ("safe", "model"))
    assert_same(ours, stock)
    resumed = make_stock(tmp_path, kind, 1)
    resumed.load(str(tmp_path / "safe_2.pt"))
    assert resumed.current_learning_iteration == 2


def test_files_are_numbered_like_the_runners(tmp_path):
    runner = make_stock(tmp_path, "ppo", 2)
    runner.learn(4)  # 0 to 3
    assert names(tmp_path) == ["safe_0.pt", "safe_2.pt"]
    runner.learn(2)  # 3, 4: rsl_rl begins with the last one's number
    assert names(tmp_path) == ["safe_2.pt", "safe_4.pt"]
    resumed = make_stock(tmp_path, "ppo", 2)
    resumed.load(str(tmp_path / "safe_4.pt"))
    resumed.learn(3)  # 4 to 6; what an earlier process wrote stays
    assert names(tmp_path) == ["safe_2.pt", "safe_4.pt", "safe_6.pt"]
    assert latest_checkpoint(tmp_path).name == "safe_6.pt"
    assert torch.load(tmp_path / "safe_6.pt")["iter"] == 6


def test_the_iteration_of_a_teacher_is_not_loaded(tmp_path):
    runner = make_stock(tmp_path, "distillation", 1)
    teacher = runner.alg.teacher.state_dict()
    runner.alg.load({"actor_state_dict": teacher, "iter": 70}, None, strict=True)
    runner.learn(1)
    assert names(tmp_path) == ["safe_0.pt"]


def test_the_other_ranks_write_nothing(tmp_path):
    runner = make_stock(tmp_path, "ppo", 1)
    runner.alg.gpu_global_rank = 1
    runner.learn(1)
    assert names(tmp_path) == []


def test_nothing_is_written_or_handled_without_the_option(tmp_path):
    before = handlers()
    make_stock(tmp_path, "ppo", None).learn(1)
    assert names(tmp_path) == []
    assert handlers() == before


def test_training_without_a_folder_is_refused_and_playing_is_not():
    runner = make_stock(None, "ppo", 5)
    runner.get_inference_policy()
    with pytest.raises(ValueError, match=r"safe_checkpoint_interval is 5, expected None here"):
        runner.learn(1)


@pytest.mark.parametrize(("kind", "number"), [case[:2] for case in CASES[:2]])
def test_a_signal_in_a_rollout_ends_a_stock_runners_training(kind, number, tmp_path):
    runner = make_stock(tmp_path, kind, 100, at={STEPS + 3: send(number)})
    with pytest.raises(SystemExit) as ended:
        runner.learn(5)
    assert ended.value.code == STOPPED
    assert names(tmp_path) == ["safe_0.pt", "safe_1.pt"]
    resumed = make_stock(tmp_path, kind, 100)
    resumed.load(str(latest_checkpoint(tmp_path)))
    assert resumed.current_learning_iteration == 1
    assert_same(*(r.alg.get_policy().state_dict() for r in (resumed, runner)))


def test_a_second_training_restores_the_handlers_from_before_both(tmp_path):
    before = handlers()
    make_stock(tmp_path / "first", "ppo", 100).learn(1)
    assert handlers() != before
    with pytest.raises(SystemExit):
        make_stock(tmp_path, "distillation", 100, at={3: send(signal.SIGTERM)}).learn(2)
    assert handlers() == before


def test_a_second_signal_ends_at_once(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def again():
        now[0] = 2.0
        signal.raise_signal(signal.SIGINT)

    at = {STEPS + 2: send(signal.SIGTERM), STEPS + 4: again}
    with pytest.raises(KeyboardInterrupt):
        make_stock(tmp_path, "ppo", 100, at=at).learn(5)
    assert names(tmp_path) == ["safe_0.pt"]


def test_a_runner_of_this_package_handles_signals_itself(tmp_path):
    at, ours = {STEPS + 3: send(signal.SIGUSR1)}, RUNNERS["ppo"]
    runner = make_stock(tmp_path, "ppo", 100, at=at, log_dir=tmp_path, runner_class=ours)
    with pytest.raises(SystemExit):
        runner.learn(5)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt", "safe_0.pt"]


def test_a_failed_file_is_skipped_unless_it_is_the_last(tmp_path, monkeypatch):
    save, fails = torch.save, [False, True, True, False, True]

    def fail(*args):
        if fails.pop(0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(*args)

    monkeypatch.setattr(torch, "save", fail)
    runner = make_stock(tmp_path, "ppo", 1, at={4 * STEPS + 3: send(signal.SIGTERM)})
    with (
        pytest.warns(UserWarning, match=r"safe_1\.pt' cannot be written .* free some space there"),
        pytest.raises(NotWrittenError, match=r"safe_4\.pt' cannot be written"),
    ):
        runner.learn(6)
    assert names(tmp_path) == ["safe_0.pt", "safe_3.pt"]
