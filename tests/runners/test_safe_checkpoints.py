"""Checkpoints are whole or absent, and a run folder that cannot be written is named first."""

import os
import re
import stat
from pathlib import Path

import pytest
import torch
from rsl_rl.runners import OnPolicyRunner
from support.safe_runs import make_runner

from rsl_tbptt.checkpoints.writing import NotWrittenError, save_checkpoint
from rsl_tbptt.runners import TbpttDistillationRunner
from rsl_tbptt.tools.doctor import read_curves


@pytest.mark.parametrize("kind", ["distillation", "ppo"])
def test_a_run_saves_and_resumes(kind, tmp_path):
    runner = make_runner(tmp_path / "run", kind)
    runner.learn(2)
    assert sorted(p.name for p in (tmp_path / "run").glob("model_*")) == [
        "model_0.pt",
        "model_1.pt",
    ]
    assert not list((tmp_path / "run").glob(".model*"))
    resumed = make_runner(None, kind)
    resumed.load(str(tmp_path / "run" / "model_1.pt"))
    assert resumed.current_learning_iteration == 1
    (of_resumed, of_runner) = (r.alg.get_policy().state_dict() for r in (resumed, runner))
    for name, value in of_runner.items():
        assert torch.equal(of_resumed[name], value)


def test_a_crash_while_writing_leaves_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    save_checkpoint({"value": 1}, path)

    def crash(_checkpoint, file):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", crash)
    with pytest.raises(NotWrittenError, match="No space left"):
        save_checkpoint({"value": 2}, path)
    assert torch.load(path) == {"value": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_what_kills_left_half_written_is_deleted_once_no_writer_can_be_at_it(tmp_path):
    prefix = "." + 32 * "a" + "-"
    left = [f"{prefix}model_1.pt", f"{prefix}safe_2.pt", f"{prefix}checkpoints.json"]
    kept = [".mine-model_1.pt", "model_1.pt", f"{prefix}model_9.pt"]
    for name in (*left, *kept):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / kept[2]).touch()  # somebody may be writing it
    save_checkpoint({"value": 1}, tmp_path / "model_3.pt")
    assert {path.name for path in tmp_path.iterdir()} == {"model_3.pt", *kept}


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


def test_iterations_are_numbered_on_after_a_resume(tmp_path):
    make_runner(tmp_path).learn(3)
    resumed = make_runner(tmp_path)
    resumed.load(str(tmp_path / "latest"))
    assert resumed.num_iterations == 3
    resumed.learn(5 - resumed.num_iterations)
    assert (resumed.num_iterations, resumed.current_learning_iteration) == (5, 4)
    assert {p.name for p in tmp_path.glob("*.pt")} == {f"model_{it}.pt" for it in range(5)}
    again = make_runner(tmp_path)
    again.load(str(tmp_path))
    again.learn(5 - again.num_iterations)  # nothing is left, and nothing is written
    assert {p.name for p in tmp_path.glob("*.pt")} == {f"model_{it}.pt" for it in range(5)}


def test_a_checkpoint_before_training_counts_nothing_as_done(tmp_path):
    runner = make_runner()
    runner.learn(0)
    runner.logger.writer = None  # which rsl_rl 5.0 lacks before a training
    runner.save(str(tmp_path / "model_0.pt"))
    resumed = make_runner()
    resumed.load(str(tmp_path / "model_0.pt"))
    assert resumed.num_iterations == 0


def test_the_stock_runner_and_ours_read_each_others_checkpoints(tmp_path):
    stock = make_runner(None, "ppo", runner_class=OnPolicyRunner)
    ours = make_runner(tmp_path, "ppo")
    ours.learn(2)
    stock.load(str(tmp_path / "model_1.pt"))
    assert stock.current_learning_iteration == 1
    torch.save({**stock.alg.save(), "iter": 7, "infos": None}, tmp_path / "model_7.pt")
    again = make_runner(None, "ppo")
    again.load(str(tmp_path / "latest"))
    assert (again.current_learning_iteration, again.num_iterations) == (7, 8)


def test_an_error_in_training_leaves_the_number_of_what_was_done(tmp_path, monkeypatch):
    runner = make_runner(tmp_path)
    runner.learn(2)

    def fail(_):
        raise RuntimeError("the simulator died")

    monkeypatch.setattr(runner.env, "step", fail)
    with pytest.raises(RuntimeError, match="the simulator died"):
        runner.learn(2)
    assert (runner.num_iterations, runner.current_learning_iteration) == (2, 1)
    assert "act" not in vars(runner.alg)
    assert "update" not in vars(runner.alg)


@pytest.mark.parametrize(
    ("kind", "losses"),
    [("distillation", ["behavior", "buffer"]), ("ppo", ["value", "surrogate", "entropy"])],
)
def test_the_console_shows_losses_and_health_goes_to_tensorboard_alone(
    kind, losses, tmp_path, capsys
):
    runner = make_runner(tmp_path, kind)
    runner.learn(2)
    table = capsys.readouterr().out.partition("Learning iteration 1/2")[2]
    assert re.findall(r"Mean (\S+) loss:", table) == losses
    assert "done_rate" not in table
    curves = read_curves(tmp_path)
    for name, value in runner.alg.metrics.items():
        steps, values = curves[f"Loss/{name}"]
        assert steps == ([1] if name == "buffer" else [0, 1])  # which begins empty
        assert values[-1] == pytest.approx(value, rel=1e-5)
    assert {"done_rate", "dead_units", "saturated_units"} <= runner.alg.metrics.keys()
