"""Checkpoints are complete or absent; a read-only run folder is refused before training."""

import copy
import os
import re
import stat
from pathlib import Path

import pytest
import torch
from support.inside import assert_same
from support.safe_runs import RUNNERS, STOCK, make_runner, names, train_cfg

from rsl_tbptt.checkpoints.writing import save_checkpoint
from rsl_tbptt.runners import TbpttDistillationRunner
from rsl_tbptt_tasks.memory import RecallEnv
from scripts.pipeline.events import read_curves


@pytest.mark.parametrize("kind", STOCK)
def test_a_training_gives_the_bits_and_files_of_rsl_rls_own_runner(kind, tmp_path):
    ended = []
    for runner_class in (RUNNERS[kind], STOCK[kind]):
        folder = tmp_path / runner_class.__name__
        runner = make_runner(folder, kind, runner_class, save_interval=3)
        runner.learn(5, init_at_random_ep_len=True)
        assert names(folder) == ["model_0.pt", "model_3.pt", "model_4.pt"]
        ended.append((runner, torch.load(folder / "model_4.pt", weights_only=True)))
    (ours, _), (stock, _) = ended
    for _, file in ended:
        for key, expected in stock.alg.save().items():
            assert_same(file[key], expected)
    assert ours.logger.rewbuffer == stock.logger.rewbuffer
    assert torch.equal(ours.env.episode_length_buf, stock.env.episode_length_buf)


def test_half_written_files_of_killed_runs_are_deleted_after_a_while(tmp_path):
    prefix = "." + 32 * "a" + "-"
    left = [f"{prefix}model_1.pt", f"{prefix}safe_2.pt"]
    kept = [".mine-model_1.pt", "model_1.pt", f"{prefix}model_9.pt"]
    for name in (*left, *kept):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / kept[2]).touch()  # another process may be writing it
    save_checkpoint({"value": 1}, tmp_path / "model_3.pt")
    assert {path.name for path in tmp_path.iterdir()} == {"model_3.pt", *kept}


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_has_the_mode_that_open_gives_and_an_old_one_keeps_its_own(tmp_path, umask):
    before = os.umask(umask)
    try:
        (tmp_path / "plain").open("wb").close()
        save_checkpoint({"value": 1}, tmp_path / "model.pt")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "model.pt") == mode_of(tmp_path / "plain") == 0o666 & ~umask
    (tmp_path / "model.pt").chmod(0o640)
    save_checkpoint({"value": 2}, tmp_path / "model.pt")
    assert mode_of(tmp_path / "model.pt") == 0o640


def test_a_link_is_kept_and_its_target_is_replaced(tmp_path):
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


def test_numbering_of_iterations_continues_after_a_resume(tmp_path):
    make_runner(tmp_path).learn(3)
    resumed = make_runner(tmp_path)
    resumed.load(str(tmp_path / "latest"))
    assert resumed.num_iterations == 3
    resumed.learn(5 - resumed.num_iterations)
    assert (resumed.num_iterations, resumed.current_learning_iteration) == (5, 4)
    assert names(tmp_path) == [f"model_{it}.pt" for it in range(5)]
    again = make_runner(tmp_path)
    again.load(str(tmp_path))
    again.learn(5 - again.num_iterations)  # nothing is left, and nothing is written
    assert names(tmp_path) == [f"model_{it}.pt" for it in range(5)]


def test_a_checkpoint_before_training_counts_nothing_as_done(tmp_path):
    runner = make_runner()
    runner.learn(0)
    runner.logger.writer = None  # which rsl_rl 5.0 lacks before a training
    runner.save(str(tmp_path / "model_0.pt"))
    resumed = make_runner()
    resumed.load(str(tmp_path / "model_0.pt"))
    assert resumed.num_iterations == 0


@pytest.mark.parametrize(
    ("kind", "losses"),
    [("distillation", ["behavior", "buffer"]), ("ppo", ["surrogate", "entropy", "value"])],
)
def test_the_console_shows_losses_and_health_goes_only_to_tensorboard(
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


def test_the_stock_runner_and_ours_read_each_others_checkpoints(tmp_path):
    stock = make_runner(None, "ppo", runner_class=STOCK["ppo"])
    make_runner(tmp_path, "ppo").learn(2)
    stock.load(str(tmp_path / "model_1.pt"))
    assert stock.current_learning_iteration == 1
    torch.save({**stock.alg.save(), "iter": 7, "infos": None}, tmp_path / "model_7.pt")
    again = make_runner(tmp_path, "ppo")
    again.load(str(tmp_path / "latest"))
    assert (again.current_learning_iteration, again.num_iterations) == (7, 8)
    again.learn(1)
    assert again.num_iterations == 9


def test_a_file_that_no_runner_wrote_changes_nothing(tmp_path):
    other = make_runner()
    torch.manual_seed(9)
    torch.nn.init.normal_(next(other.alg.student.parameters()))
    torch.save(other.alg.save(), tmp_path / "model_0.pt")
    runner = make_runner()
    before = copy.deepcopy(runner.alg.save())
    with pytest.raises(ValueError, match=r"lacks \['infos', 'iter'\], it holds \['student_state"):
        runner.load(str(tmp_path / "model_0.pt"))
    assert_same(runner.alg.save(), before)


# What follows is keep_last.


def test_a_new_training_is_refused_in_the_folder_of_a_run(tmp_path):
    make_runner(tmp_path, keep_last=2).learn(3)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix == ".pt"}
    again = make_runner(tmp_path, keep_last=2)
    with pytest.raises(ValueError, match=r"log_dir is .*expected a folder without .* model_2\.pt"):
        again.learn(3)
    elsewhere = make_runner(tmp_path / "other")
    elsewhere.learn(1)
    again.load(str(tmp_path / "other" / "latest"))
    with pytest.raises(
        ValueError, match=r"call load\('.*latest'\) first, else name another folder"
    ):
        again.learn(3)
    assert before == {path: path.read_bytes() for path in before}
    again.load(str(tmp_path / "latest"))
    again.learn(1)
    again.learn(1)  # its own files are allowed
    assert names(tmp_path) == [f"model_{it}.pt" for it in (1, 2, 3, 4)]


def test_a_file_outside_the_run_or_of_another_name_is_not_counted(tmp_path):
    runner = make_runner(tmp_path / "run", keep_last=1)
    runner.learn(1)
    runner.save(str(tmp_path / "model_8.pt"))
    runner.save(str(tmp_path / "run" / "mine.pt"))
    runner.learn(1)
    assert names(tmp_path) == ["model_8.pt"]
    assert names(tmp_path / "run") == ["mine.pt", "model_1.pt"]


def test_files_that_another_process_wrote_are_never_deleted(tmp_path):
    make_runner(tmp_path, keep_last=2).learn(3)
    resumed = make_runner(tmp_path, keep_last=2)
    resumed.load(str(tmp_path / "latest"))
    resumed.learn(3)
    assert names(tmp_path) == [f"model_{it}.pt" for it in (1, 2, 4, 5)]


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"keep_last": 0}, "keep_last is 0"),
        ({"keep_best": True}, r"keep_best is True, expected no such key: .* by keep_last, and"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_built(settings, option):
    with pytest.raises(ValueError, match=option):
        make_runner(**settings)


@pytest.mark.parametrize("kind", RUNNERS)
def test_the_check_for_nan_is_not_turned_off_in_your_config(kind):
    cfg = train_cfg(kind)
    runner = RUNNERS[kind](RecallEnv(4, 3), cfg)
    assert runner.cfg["check_for_nan"] is False
    assert "check_for_nan" not in cfg
