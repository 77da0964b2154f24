"""Checkpoints are whole or absent, and a run folder that cannot be written is named first."""

import os
import stat
from pathlib import Path

import pytest
import torch
from support.helpers import parameters_of

from rsl_tbptt.checkpoints.writing import save_checkpoint
from rsl_tbptt.runners import TbpttDistillationRunner
from rsl_tbptt_tasks.memory import RecallEnv


def model_cfg(class_name, **kwargs):
    """Return a config of its own: rsl_rl before 5.5 takes entries out of what it is given."""
    return {
        "class_name": class_name,
        "hidden_dims": [8],
        "activation": "elu",
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.1},
        **kwargs,
    }


def train_cfg():
    return {
        "num_steps_per_env": 6,
        "save_interval": 1,
        "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
            "gradient_length": 3,
        },
        "student": model_cfg("RNNModel", rnn_type="lstm", rnn_hidden_dim=8, rnn_num_layers=1),
        "teacher": model_cfg("MLPModel"),
    }


def make_runner(log_dir=None):
    runner = TbpttDistillationRunner(RecallEnv(4, 3), train_cfg(), log_dir=log_dir)
    runner.alg.teacher_loaded = True
    return runner


def test_a_run_saves_and_resumes(tmp_path):
    runner = make_runner(str(tmp_path / "run"))
    runner.learn(2)
    assert sorted(p.name for p in (tmp_path / "run").glob("model_*")) == [
        "model_0.pt",
        "model_1.pt",
    ]
    assert not list((tmp_path / "run").glob(".model*"))
    resumed = make_runner()
    resumed.load(str(tmp_path / "run" / "model_1.pt"))
    assert resumed.current_learning_iteration == 1
    assert torch.equal(parameters_of(resumed.alg), parameters_of(runner.alg))


def test_a_crash_while_writing_leaves_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    save_checkpoint({"value": 1}, path)

    def crash(_checkpoint, file):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", crash)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint({"value": 2}, path)
    assert torch.load(path) == {"value": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_has_the_mode_that_open_gives(tmp_path, umask):
    before = os.umask(umask)
    try:
        (tmp_path / "plain").open("wb").close()
        save_checkpoint({"value": 1}, tmp_path / "model.pt")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "model.pt") == mode_of(tmp_path / "plain") == 0o666 & ~umask


def test_a_file_that_is_there_keeps_its_mode(tmp_path):
    save_checkpoint({"value": 1}, tmp_path / "model.pt")
    (tmp_path / "model.pt").chmod(0o640)
    save_checkpoint({"value": 2}, tmp_path / "model.pt")
    assert mode_of(tmp_path / "model.pt") == 0o640


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "model.pt").symlink_to("elsewhere/target.pt")
    for value in (1, 2):  # the target is missing, then there
        save_checkpoint({"value": value}, tmp_path / "model.pt")
        assert (tmp_path / "model.pt").is_symlink()
        assert torch.load(tmp_path / "elsewhere" / "target.pt") == {"value": value}
    assert len(list(tmp_path.rglob("*"))) == 3


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_built(tmp_path):
    Path(tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"run folder '.*file/run' cannot be written"):
        TbpttDistillationRunner(None, {}, log_dir=str(tmp_path / "file" / "run"))


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"model_9\.pt' does not exist"):
        make_runner().load(str(tmp_path / "model_9.pt"))


def test_the_stock_check_for_a_teacher_still_holds():
    runner = make_runner()
    runner.alg.teacher_loaded = False
    with pytest.raises(ValueError, match="Teacher model parameters not loaded"):
        runner.learn(1)
