"""Trainings of one process or several ranks: killed, failing, signalled, and equal."""

import random
import signal
import time

import pytest
import torch
from support.inside import assert_same
from support.process import process
from support.safe_runs import make_runner
from torch.utils._pytree import tree_leaves

from rsl_tbptt.checkpoints.reading import latest_checkpoint, read_checkpoint
from rsl_tbptt.core.distributed import Ranks

KEPT = 3


def told(folder, name):
    """Return the number of iterations that a run has recorded."""
    try:
        return int((folder / name).read_text())
    except FileNotFoundError:
        return 0


def own_of(path):
    return read_checkpoint(str(path), "cpu")["rsl_tbptt_runner"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "kills", "interval"),
    [
        ("ppo", 10, 1),
        pytest.param("ppo", 200, 1, marks=pytest.mark.soak),
        pytest.param("distillation", 50, 3, marks=pytest.mark.soak),
    ],
)
def test_a_killed_training_loses_one_interval_and_ends_with_the_same_bits(
    kind, kills, interval, tmp_path
):
    moments, found, run = random.Random(0), 0, tmp_path / "run"
    config = {"save_interval": interval, "keep_last": KEPT}
    if kind == "distillation":
        config["algorithm"] = {"buffer_rollouts": 2, "buffer_share": 1.0, "save_buffer": True}
    settings = {"kind": kind, "config": config}

    def at_any_time():
        time.sleep(moments.uniform(0, 0.3))

    def after_a_save():
        known, deadline = told(run, "saved"), time.monotonic() + 200
        while told(run, "saved") <= known and time.monotonic() < deadline:
            time.sleep(0.002)  # it continues at all
        time.sleep(moments.uniform(0, 0.05 * interval))

    for kill in range(kills):
        kill_at = at_any_time if kill % 4 == 3 else after_a_save
        assert process(run, kill_at=kill_at, **settings) == [-signal.SIGKILL]
        reached, saved = told(run, "reached"), told(run, "saved")
        if saved:
            done = own_of(latest_checkpoint(run))["num_iterations"]
            # One more if it was killed before it recorded the iteration.
            assert max(saved, reached - interval, found) <= done <= reached + 1
            found = done
    assert all(torch.load(path, weights_only=True) for path in run.glob("model_*.pt"))

    total, ends = found + interval, []
    for folder in (run, tmp_path / "never killed"):
        assert process(folder, iterations=total, **settings) == [0]
        file = read_checkpoint(str(folder / f"model_{total - 1}.pt"), "cpu")
        ends.append(tree_leaves([file[name] for name in file if name.endswith("state_dict")]))
    assert_same(*ends)


NAN = "ValueError: The update met NaN or inf in observation group 'policy' of environments [1]"
BROKEN = "ValueError: the simulator broke"


@pytest.mark.long
@pytest.mark.parametrize(
    ("event", "statuses"),
    [
        ("raises", ("RuntimeError", BROKEN)),
        ("stands still", ("RuntimeError", None)),
        ("shows nan", (NAN, NAN)),
    ],
)
def test_a_rank_that_fails_ends_all_and_finished_iterations_are_saved(event, statuses, tmp_path):
    options = {"non_finite": "raise"} if event == "shows nan" else {}
    config = {"algorithm": options, "check_for_nan": False, "save_interval": 100}
    codes = process(tmp_path, 2, kind="distillation", event=event, config=config)
    assert codes[0] not in (0, None)
    for rank, expected in enumerate(statuses):
        if expected is not None:
            assert (tmp_path / f"status_{rank}").read_text().startswith(expected)
    assert read_checkpoint(str(latest_checkpoint(tmp_path)), "cpu")["iter"] == 1


@pytest.mark.long
def test_torchrun_ends_all_ranks_of_one_that_is_killed(tmp_path):
    config = {"save_interval": 100}
    assert process(tmp_path, 2, torchrun=True, event="is killed", config=config) == [1]
    assert "Signal 9 (SIGKILL) received" in (tmp_path / "output_torchrun").read_text()
    assert latest_checkpoint(tmp_path).name == "model_1.pt"


@pytest.mark.long
def test_a_signal_to_torchrun_stops_all_ranks_at_one_iteration(tmp_path):
    def once_saved():
        while told(tmp_path, "saved") < 2:
            time.sleep(0.1)

    process(tmp_path, 2, torchrun=True, step_s=0.01, kill_at=once_saved, by=signal.SIGTERM)
    assert [(tmp_path / f"status_{r}").read_text() for r in range(2)] == ["SystemExit: 85"] * 2
    file = read_checkpoint(str(latest_checkpoint(tmp_path)), "cpu")
    assert file["iter"] == file["rsl_tbptt_runner"]["num_iterations"] - 1


def test_ranks_that_begin_at_different_iterations_are_refused(tmp_path, monkeypatch):
    runner = make_runner(tmp_path)
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, (3, True)])
    with pytest.raises(ValueError, match=r"num_iterations is \[0, 3\] on the ranks, expected"):
        runner.learn(1)


def results(folder, ranks, **settings):
    """Train; return parameters, normalisers, optimisers and last metrics of each rank."""
    assert process(folder, ranks, **settings) == [0] * ranks, [
        (folder / f"output_{rank}").read_text()[-3000:] for rank in range(ranks)
    ]
    return [torch.load(folder / f"result_{rank}", weights_only=True) for rank in range(ranks)]


SMOKE = ("distillation", 2)  # of several ranks, in `make test`
METRICS = {
    "distillation": "behavior buffer grad_norm optimizer_steps done_rate skipped_updates",
    "ppo": "value surrogate entropy kl rnd actor_grad_norm done_rate skipped_updates",
}
"""Of all ranks; others are each rank's own."""


@pytest.mark.parametrize(
    ("kind", "ranks"), [SMOKE, *(pytest.param("ppo", n, marks=pytest.mark.long) for n in (2, 3))]
)
def test_any_number_of_ranks_gives_the_same_numbers_and_resumes_anothers(kind, ranks, tmp_path):
    settings = {"kind": kind, "config": {"save_interval": 2}}
    (alone, metrics), *_ = results(tmp_path / "alone", 1, iterations=3, **settings)
    of_ranks = results(tmp_path / "ranks", ranks, iterations=3, **settings)
    torch.testing.assert_close(of_ranks[0][0], alone, rtol=1e-6, atol=1e-6)
    for numbers, seen in of_ranks:
        assert_same(numbers, of_ranks[0][0])
        for name in METRICS[kind].split():
            assert seen[name] == pytest.approx(metrics[name], rel=1e-6, abs=1e-9), name
    # Only the first one writes.
    assert {path.name for path in (tmp_path / "ranks").glob("*.pt")} == {"model_0.pt", "model_2.pt"}
    assert len(list((tmp_path / "ranks").glob("events.*"))) == 1
    assert own_of(tmp_path / "ranks" / "model_2.pt")["resume"].keys() <= {"counters", "rnd"}

    ends = []
    for num_ranks, other in ((ranks, "alone"), (1, "ranks")):
        folder, file = tmp_path / f"resumed_{num_ranks}", tmp_path / other / "model_2.pt"
        load = {"load": str(file), "iterations": 4}
        ends.append(results(folder, num_ranks, **load, **settings)[0])
    warning = f"The training goes on with {ranks} ranks: episodes, hidden states and random"
    said = [(tmp_path / f"resumed_{ranks}" / f"output_{rank}").read_text() for rank in range(ranks)]
    assert [warning in text for text in said] == [True] + [False] * (ranks - 1)
    # Both begin new episodes, the same ones, so results are equal again.
    torch.testing.assert_close(*(numbers for numbers, _ in ends), rtol=1e-6, atol=1e-6)
