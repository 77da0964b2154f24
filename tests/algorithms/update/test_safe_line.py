"""An algorithm's own checkpoints under a stock runner: as the runner's, the newest two."""

from types import SimpleNamespace

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.safe_runs import NUM_ENVS, make_runner

from rsl_tbptt.checkpoints.latest import latest_checkpoint
from rsl_tbptt_tasks.memory import RecallEnv

STOCK = {"distillation": DistillationRunner, "ppo": OnPolicyRunner}


def env_of(log_dir):
    env = RecallEnv(NUM_ENVS, 3)
    env.cfg = SimpleNamespace(log_dir=log_dir and str(log_dir))
    return env


def make(folder, kind, interval, log_dir=None):
    options = {"safe_checkpoint_interval": interval}
    return make_runner(log_dir, kind, STOCK[kind], algorithm=options, env=env_of(folder))


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
    runner.alg.safe_line._is_writer = False
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
