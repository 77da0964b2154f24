"""An algorithm's own checkpoints under a stock runner: as the runner's, the newest two."""

import errno
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.safe_runs import RUNNERS, DisturbedEnv, make_runner

from rsl_tbptt.checkpoints.reading import latest_checkpoint
from rsl_tbptt.checkpoints.writing import NotWrittenError
from rsl_tbptt.signals import STOPPED

STOCK = {"distillation": DistillationRunner, "ppo": OnPolicyRunner}


STEPS = 6
"""Of a rollout."""


@pytest.fixture(autouse=True)
def handlers():
    """Python's own handlers, before and after; a stock runner does not say when it has ended."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    yield lambda: [signal.getsignal(number) for number in numbers]
    for number, handler in before.items():
        signal.signal(number, handler)


def env_of(log_dir, at):
    env = DisturbedEnv(at)
    env.cfg = SimpleNamespace(log_dir=log_dir and str(log_dir))
    return env


def make(folder, kind, interval, log_dir=None, at=None, runner=None):
    options, env = {"safe_checkpoint_interval": interval}, env_of(folder, at or {})
    return make_runner(log_dir, kind, runner or STOCK[kind], algorithm=options, env=env)


def send(number):
    return lambda: os.kill(os.getpid(), number)


def names(folder):
    return sorted(path.name for path in folder.glob("*.pt"))


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("kind", STOCK)
def test_each_is_what_the_runner_writes_and_loads(kind, tmp_path):
    runner = make(tmp_path, kind, 1, log_dir=tmp_path)
    runner.learn(3)
    assert names(tmp_path) == [*(f"model_{it}.pt" for it in range(3)), "safe_1.pt", "safe_2.pt"]
    for it in (1, 2):
        files = (tmp_path / f"{line}_{it}.pt" for line in ("safe", "model"))
        ours, stock = (torch.load(file, weights_only=True) for file in files)
        assert same(ours, stock)
    resumed = make(tmp_path, kind, 1)
    resumed.load(str(tmp_path / "safe_2.pt"))
    assert resumed.current_learning_iteration == 2


@pytest.mark.parametrize("kind", STOCK)
def test_they_are_numbered_as_the_runner_does(kind, tmp_path):
    runner = make(tmp_path, kind, 2)
    runner.learn(4)  # 0 to 3
    assert names(tmp_path) == ["safe_0.pt", "safe_2.pt"]
    runner.learn(2)  # 3, 4: rsl_rl begins with the last one's number
    assert names(tmp_path) == ["safe_2.pt", "safe_4.pt"]
    resumed = make(tmp_path / "resumed", kind, 2)
    resumed.load(str(tmp_path / "safe_4.pt"))
    resumed.learn(3)  # 4 to 6
    assert names(tmp_path / "resumed") == ["safe_4.pt", "safe_6.pt"]
    assert latest_checkpoint(tmp_path / "resumed").name == "safe_6.pt"
    assert torch.load(tmp_path / "resumed" / "safe_6.pt")["iter"] == 6


def test_a_file_of_an_earlier_process_is_never_deleted(tmp_path):
    make(tmp_path, "ppo", 1).learn(2)
    resumed = make(tmp_path, "ppo", 1)
    resumed.load(str(tmp_path / "safe_1.pt"))
    resumed.learn(4)
    assert names(tmp_path) == ["safe_0.pt", "safe_3.pt", "safe_4.pt"]


def test_a_teacher_does_not_bring_its_iteration(tmp_path):
    runner = make(tmp_path, "distillation", 1)
    teacher = runner.alg.teacher.state_dict()
    runner.alg.load({"actor_state_dict": teacher, "iter": 70}, None, strict=True)
    runner.learn(1)
    assert names(tmp_path) == ["safe_0.pt"]


def test_the_other_ranks_write_nothing(tmp_path):
    runner = make(tmp_path, "ppo", 1)
    runner.alg.gpu_global_rank = 1
    runner.learn(1)
    assert names(tmp_path) == []


def test_nothing_is_written_unless_asked_for(tmp_path):
    make(tmp_path, "ppo", None).learn(1)
    assert names(tmp_path) == []


def test_training_without_a_folder_is_refused_and_playing_is_not(tmp_path):
    runner = make(None, "ppo", 5)
    runner.get_inference_policy()
    with pytest.raises(ValueError, match=r"safe_checkpoint_interval is 5, expected None here: the"):
        runner.learn(1)


@pytest.mark.parametrize("interval", [0, 1.5, True])
def test_an_interval_that_is_no_number_of_iterations_is_refused(interval):
    with pytest.raises(ValueError, match=r"safe_checkpoint_interval is .*, expected an integer of"):
        make(None, "ppo", interval)


@pytest.mark.parametrize("kind", STOCK)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_in_a_rollout_ends_the_training_after_its_update(kind, number, tmp_path):
    runner = make(tmp_path, kind, 100, at={STEPS + 3: send(number)})
    with pytest.raises(SystemExit) as ended:
        runner.learn(5)
    assert ended.value.code == STOPPED == 85
    assert names(tmp_path) == ["safe_0.pt", "safe_1.pt"]
    resumed = make(tmp_path, kind, 100)
    resumed.load(str(latest_checkpoint(tmp_path)))
    assert resumed.current_learning_iteration == 1
    of_resumed, of_runner = (r.alg.get_policy().state_dict() for r in (resumed, runner))
    assert all(torch.equal(of_resumed[name], value) for name, value in of_runner.items())
    resumed.learn(2)


def test_a_training_that_follows_another_puts_back_what_was_before_both(tmp_path, handlers):
    before = handlers()
    make(tmp_path / "first", "ppo", 100).learn(1)
    assert handlers() != before
    with pytest.raises(SystemExit):
        make(tmp_path, "distillation", 100, at={3: send(signal.SIGTERM)}).learn(2)
    assert handlers() == before


def test_a_second_signal_ends_at_once(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def again():
        now[0] = 2.0
        signal.raise_signal(signal.SIGINT)

    at = {STEPS + 2: send(signal.SIGTERM), STEPS + 4: again}
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, "ppo", 100, at=at).learn(5)
    assert names(tmp_path) == ["safe_0.pt"]


def test_without_the_option_signals_are_left_alone(tmp_path, handlers):
    before = handlers()
    make(tmp_path, "ppo", None).learn(1)
    assert handlers() == before


@pytest.mark.parametrize("kind", STOCK)
def test_a_runner_of_this_package_answers_its_signals_itself(kind, tmp_path):
    at, ours = {STEPS + 3: send(signal.SIGUSR1)}, RUNNERS[kind]
    runner = make(tmp_path, kind, 100, log_dir=tmp_path, at=at, runner=ours)
    with pytest.raises(SystemExit):
        runner.learn(5)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt", "safe_0.pt"]


def test_all_ranks_end_where_one_was_asked_to(tmp_path, monkeypatch):
    runner = make(tmp_path, "ppo", 100)
    asked = iter([0, 0, 1])
    monkeypatch.setattr(type(runner.alg._ranks), "sum_count", lambda *_: next(asked))
    with pytest.raises(SystemExit):
        runner.learn(5)
    assert names(tmp_path) == ["safe_0.pt", "safe_2.pt"]


def test_a_file_that_fails_is_passed_over_unless_it_is_the_last(tmp_path, monkeypatch):
    save, fails = torch.save, [False, True, True, False, True]

    def fail(*args):
        if fails.pop(0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(*args)

    monkeypatch.setattr(torch, "save", fail)
    runner = make(tmp_path, "ppo", 1, at={4 * STEPS + 3: send(signal.SIGTERM)})
    with (
        pytest.warns(UserWarning, match=r"safe_1\.pt' cannot be written .* free some space there"),
        pytest.raises(NotWrittenError, match=r"safe_4\.pt' cannot be written"),
    ):
        runner.learn(6)
    assert names(tmp_path) == ["safe_0.pt", "safe_3.pt"]
