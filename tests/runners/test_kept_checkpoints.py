"""Older checkpoints are deleted, the best and what others wrote are not."""

import json

import pytest
import torch
from support.safe_runs import make_runner

from rsl_tbptt.checkpoints.writing import NOTES, KeptCheckpoints, save_checkpoint
from rsl_tbptt_tasks.memory import RecallEnv


def names(folder):
    return sorted(path.name for path in folder.glob("*.pt"))


def write(kept, folder, iteration, mean_return=None):
    path = folder / f"model_{iteration}.pt"
    save_checkpoint({"value": iteration}, path)
    kept.add(path, iteration, mean_return)


def test_a_run_keeps_its_newest_checkpoints(tmp_path):
    make_runner(tmp_path, keep_last=2).learn(5)
    assert names(tmp_path) == ["model_3.pt", "model_4.pt"]


@pytest.mark.parametrize("settings", [{}, {"keep_last": None, "keep_best": False}])
def test_without_a_number_everything_is_kept_and_nothing_noted(settings, tmp_path):
    make_runner(tmp_path, **settings).learn(4)
    assert names(tmp_path) == [f"model_{it}.pt" for it in range(4)]
    assert not (tmp_path / NOTES).exists()


class CostlyEnv(RecallEnv):
    """Each step costs: 1 in the first 8 rollouts, then a half; episodes last 1 to 40 steps."""

    def __init__(self, num_envs):
        super().__init__(num_envs, 3)
        self.lengths, self.num_steps = torch.arange(num_envs) % 40 + 1, 0
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)

    def _asked(self):
        return self.episode_length_buf + 1 >= self.lengths

    def step(self, actions):
        self.num_steps += 1
        obs, _, dones, extras = super().step(actions)
        return (
            obs,
            torch.full((self.num_envs,), -1.0 if self.num_steps <= 48 else -0.5),
            dones,
            extras,
        )

    def state_dict(self):
        return {**super().state_dict(), "num_steps": self.num_steps}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.num_steps = state_dict["num_steps"]


def ratings(folder):
    notes = json.loads((folder / NOTES).read_text())
    return {note["iteration"]: note["mean_return"] for note in notes}


@pytest.mark.parametrize(
    ("num_envs", "first_rated"), [(4, 7), (400, 6)], ids=["window not full", "short episodes only"]
)
def test_returns_count_once_the_window_is_full_and_every_environment_has_ended_an_episode(
    num_envs, first_rated, tmp_path
):
    runner = make_runner(tmp_path, env=CostlyEnv(num_envs), keep_last=50, keep_best=True)
    runner.learn(12)
    rated = ratings(tmp_path)
    assert [it for it, value in rated.items() if value is not None] == [*range(first_rated, 12)]
    returns = runner.logger.rewbuffer
    assert rated[11] == pytest.approx(sum(returns) / len(returns))


def test_the_best_is_not_an_untrained_model_whose_short_episodes_ended_first(tmp_path):
    make_runner(tmp_path, env=CostlyEnv(400), keep_last=1, keep_best=True).learn(16)
    best, newest = json.loads((tmp_path / NOTES).read_text())
    assert best["iteration"] >= 8
    assert newest["iteration"] == 15


def test_a_resumed_run_rates_as_one_that_was_not_interrupted(tmp_path):
    settings = {"keep_last": 50, "keep_best": True}
    make_runner(tmp_path / "whole", env=CostlyEnv(400), **settings).learn(10)
    for _ in range(2):
        runner = make_runner(tmp_path / "parts", env=CostlyEnv(400), **settings)
        if list((tmp_path / "parts").glob("*.pt")):
            runner.load(str(tmp_path / "parts" / "latest"))
        runner.learn(5)
    assert ratings(tmp_path / "parts") == pytest.approx(ratings(tmp_path / "whole"))


def test_where_episodes_begin_anew_after_a_resume_returns_do_too(tmp_path):
    def simulator():
        absent = {"state_dict": property(), "load_state_dict": property()}
        return type("Simulator", (CostlyEnv,), absent)(400)

    make_runner(tmp_path, env=simulator(), keep_last=50, keep_best=True).learn(8)
    resumed = make_runner(tmp_path, env=simulator(), keep_last=50, keep_best=True)
    resumed.load(str(tmp_path / "latest"))
    resumed.learn(8)
    rated = [it for it, value in ratings(tmp_path).items() if value is not None]
    assert rated == [6, 7, 14, 15]


def test_a_new_training_is_refused_in_a_folder_that_holds_a_run(tmp_path):
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
    again.learn(1)  # its own files are in nobody's way
    assert names(tmp_path) == ["model_3.pt", "model_4.pt"]


def test_the_best_is_kept_beside_the_newest(tmp_path):
    kept = KeptCheckpoints(tmp_path, 2, keep_best=True)
    for iteration, mean_return in enumerate([None, -3.0, -1.0, float("nan"), -1.0, -2.0, -2.0]):
        write(kept, tmp_path, iteration, mean_return)
    assert names(tmp_path) == ["model_4.pt", "model_5.pt", "model_6.pt"]
    write(kept, tmp_path, 7, -0.5)
    assert names(tmp_path) == ["model_6.pt", "model_7.pt"]
    for iteration in (8, 9):
        write(kept, tmp_path, iteration, float("nan"))
    assert names(tmp_path) == ["model_7.pt", "model_8.pt", "model_9.pt"]


def test_the_best_is_not_kept_if_nobody_asks(tmp_path):
    kept = KeptCheckpoints(tmp_path, 1, keep_best=False)
    write(kept, tmp_path, 0, 5.0)
    write(kept, tmp_path, 1, 1.0)
    assert names(tmp_path) == ["model_1.pt"]


def test_what_it_did_not_write_is_never_deleted(tmp_path):
    (tmp_path / "model_0.pt").write_text("of a runner that notes nothing")
    kept = KeptCheckpoints(tmp_path, 1, keep_best=False)
    write(kept, tmp_path, 1)
    (tmp_path / "model_1.pt").write_text("put there by somebody instead")
    write(kept, tmp_path, 2)
    write(kept, tmp_path, 3)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt", "model_3.pt"]


def test_a_file_outside_the_run_or_of_another_name_is_not_counted(tmp_path):
    runner = make_runner(tmp_path / "run", keep_last=1)
    runner.learn(1)
    runner.save(str(tmp_path / "model_8.pt"))
    runner.save(str(tmp_path / "run" / "mine.pt"))
    runner.learn(1)
    assert names(tmp_path) == ["model_8.pt"]
    assert names(tmp_path / "run") == ["mine.pt", "model_1.pt"]


def test_a_resumed_run_deletes_what_the_one_before_wrote(tmp_path):
    make_runner(tmp_path, keep_last=2).learn(3)
    resumed = make_runner(tmp_path, keep_last=2)
    resumed.load(str(tmp_path / "latest"))
    resumed.learn(2)
    assert names(tmp_path) == ["model_3.pt", "model_4.pt"]


def test_unreadable_notes_keep_what_they_noted(tmp_path):
    write(KeptCheckpoints(tmp_path, 1, keep_best=False), tmp_path, 0)
    (tmp_path / NOTES).write_text("{")
    with pytest.warns(UserWarning, match=r"checkpoints\.json' cannot be read"):
        kept = KeptCheckpoints(tmp_path, 1, keep_best=False)
    write(kept, tmp_path, 1)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]


def note(path, name, **changes):
    """Return what notes say of a file as it is, under a name."""
    found = path.stat()
    entry = {"file": name, "iteration": 0, "mean_return": None}
    return entry | {"size": found.st_size, "mtime_ns": found.st_mtime_ns} | changes


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("thesis.tex", "../thesis.tex"),
        ("model_0.pt", "../model_0.pt"),
        ("run/notes.txt", "notes.txt"),
        ("run/exported/model_0.pt", "exported/model_0.pt"),
        ("run/model_0.pt", "../run/model_0.pt"),
    ],
)
def test_notes_name_checkpoints_of_their_folder_and_nothing_else_is_deleted(where, name, tmp_path):
    run, precious = tmp_path / "run", tmp_path / where
    precious.parent.mkdir(parents=True, exist_ok=True)
    run.mkdir(exist_ok=True)
    precious.write_text("years of work")
    (run / NOTES).write_text(json.dumps([note(precious, name)]))
    kept = KeptCheckpoints(run, 1, keep_best=False)
    write(kept, run, 1)
    write(kept, run, 2)
    assert precious.read_text() == "years of work"
    assert not (run / "model_1.pt").exists()


@pytest.mark.parametrize(
    "changes", [{"file": 5}, {"mean_return": "high"}, {"mean_return": float("nan")}]
)
def test_notes_of_other_types_are_nobodys(changes, tmp_path):
    (tmp_path / "model_0.pt").write_text("whose?")
    forged = note(tmp_path / "model_0.pt", "model_0.pt", **changes)
    (tmp_path / NOTES).write_text(json.dumps([forged]))
    kept = KeptCheckpoints(tmp_path, 1, keep_best=True)
    write(kept, tmp_path, 1, 1.0)
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep_last": 0}, "keep_last is 0, expected an integer of at least 1"),
        ({"keep_last": True}, "keep_last is True, expected an integer"),
        ({"keep_last": 2.5}, "keep_last is 2.5, expected an integer"),
        ({"keep_last": 1, "keep_best": 3}, "keep_best is 3, expected True or False"),
        ({"keep_best": True}, "keep_best is True and keep_last None, expected a number"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_built(settings, message):
    with pytest.raises(ValueError, match=message):
        make_runner(**settings)
