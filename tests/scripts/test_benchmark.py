"""The benchmark times only equal computations, counts correctly, and writes its measurements."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from rsl_rl.models import CNNModel

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.models import CNNRNNModel
from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import case as bench
from scripts.benchmark import memory, suite
from scripts.benchmark.case import LIBRARIES, Case, build, check_equal, spread
from scripts.benchmark.stepped import SteppedCNNRNNModel
from scripts.benchmark.suite import load_rows

TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)
FEW = ("--num-envs=8", "--num-steps=4", "--gradient-length=4", "--rnn-hidden-dim=8")
ROWS = [*load_rows("rows"), *load_rows("agents")]


def run(monkeypatch, *options):
    monkeypatch.setattr("sys.argv", ["benchmark", *map(str, options)])
    return benchmark.main()


def test_a_suite_writes_report_and_data(monkeypatch, tmp_path, capsys):
    """Here rsl_rl takes 100 + N megabytes, and ours a tenth."""

    def call(function, case, *arguments):
        if function is suite.alternate:
            return function(case, *arguments)
        return (1.0 if arguments[0] == "rsl_rl" else 0.1) * (100.0 + case.num_envs)

    names = (
        "distillation-64-lstm-bfloat16",
        "distillation-64-lstm-float32",
        "ppo-cost-of-dones",
        "ppo-memory-24",
    )
    monkeypatch.setattr(memory, "in_own_process", call)
    monkeypatch.setattr(suite, "in_own_process", call)
    monkeypatch.setattr(suite, "load_rows", lambda _: [row for row in ROWS if row.name in names])
    output = tmp_path / "bench"
    assert run(monkeypatch, "suite", "--quick", "--output", output) == 0
    report = (output / "benchmark.md").read_text(encoding="utf-8")
    assert report in capsys.readouterr().out
    assert report.count("| distillation, LSTM-8, float32") == 1
    assert "| 132 MB | 13 MB | 0.100 |" in report
    data = json.loads((output / "benchmark.json").read_text(encoding="utf-8"))
    assert {row["name"] for kind in ("speed", "cost", "memory") for row in data[kind]} == {*names}
    for row in data["speed"]:
        assert [len(seconds) for seconds in row["seconds"]] == [row["pairs"]] * 2
    assert data["about"]["versions"]["torch"] == torch.__version__.split("+")[0]


def test_an_update_of_your_own_sizes_shows_time_and_memory(monkeypatch, capsys):
    for module in (suite, memory):
        monkeypatch.setattr(module, "in_own_process", lambda call, *arguments: call(*arguments))
    sizes = ("--num-mini-batches=2", "--rnn-num-layers=2", "--pairs=1", "--memory")
    assert run(monkeypatch, "update", *FEW, *sizes) == 0
    row = r"^\| PPO, 2 layers of LSTM-8, float32, N=8, T=4, K=4, done rate 0\.05 \|"
    printed = capsys.readouterr().out
    assert re.search(
        rf"{row}( [\d.]+ ms \|){{2}} [\d.]+ \| [\d.]+ to [\d.]+ \| - \|$", printed, re.M
    )
    assert re.search(rf"{row}( \d+ MB \|){{2}} [\d.]+ \| - \|$", printed, re.M)


@pytest.mark.parametrize(
    ("rows", "algorithm", "other"),
    [("distillation-64", "distillation", TbpttDistillation), ("ppo-256x128", "ppo", TbpttPPO)],
)
def test_different_computations_are_not_compared(
    rows, algorithm, other, monkeypatch, tmp_path, capsys
):
    def half_a_percent_more(*args, learning_rate=1e-3, **options):
        return other(*args, learning_rate=1.005 * learning_rate, **options)

    monkeypatch.setitem(bench.CLASSES[algorithm], "rsl_tbptt", half_a_percent_more)
    bench._difference.cache_clear()
    output = tmp_path / "bench"
    assert run(monkeypatch, "suite", "--quick", "--rows", rows, "--output", output) == 2
    bench._difference.cache_clear()
    wrong = r"parameters' change by one update differs by [45]\.\de-03 .* are not compared"
    assert re.search(wrong, capsys.readouterr().err)
    assert not output.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("update", *FEW, "--device=cuda:99"), "device is 'cuda:99', expected cpu or"),
        (("update", *FEW, "--num-steps=0"), "num_steps is 0, expected at least 1"),
        (("update", *FEW, "--done-rate=5"), "done_rate is 5.0, expected a share"),
        (("update", *FEW, "--num-envs=10"), "num_envs is 10, expected a multiple"),
        (("update", *FEW, "--pairs=0"), "pairs is 0, expected at least 1"),
        (("suite", "--rows=ppo-7"), "--rows is 'ppo-7', expected a part of one of ['dist"),
    ],
)
def test_wrong_options_are_named(monkeypatch, words, message, capsys):
    assert run(monkeypatch, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("num_mini_batches", "few"), [(3, 30), (256, 512)])
def test_equality_is_checked_over_all_steps_and_with_all_environments(
    monkeypatch, num_mini_batches, few
):
    checked = []
    monkeypatch.setattr(bench, "_difference", lambda case: checked.append(case) or 0.0)
    check_equal(Case(num_envs=15360, num_steps=128, num_mini_batches=num_mini_batches))
    sizes = [(c.num_envs, c.num_steps, c.gradient_length) for c in checked]
    assert sizes == [(few, 128, 128), (15360, 4, 4)]


def test_rows_have_unique_names_and_are_compared_with_their_targets():
    rows = {row.name: row for row in ROWS}
    assert len(rows) == len(ROWS)
    speed, cost = rows["distillation-64-lstm-float32"], rows["ppo-cost-of-dones"]
    assert [speed.result(ratio)["reached"] for ratio in (2.8, 2.7)] == [True, False]
    assert [cost.result(ratio)["reached"] for ratio in (1.1, 1.2)] == [True, False]
    assert spread([1.0, 2.0, 4.0], [2.0, 20.0, 12.0]) == (2.0, 3.0, 10.0)
    large = "frames-memory-4096-uint8"  # runs on a CPU only if it is named in full
    assert [row.name for row in suite.select(ROWS, large, "cpu")] == [large]
    assert {row.case.num_envs for row in suite.select(ROWS, "frames", "cpu")} == {1024}


def test_the_rows_of_what_people_train_are_the_defaults():
    trained = [row.case for row in ROWS if row.name.startswith("trained")]
    (student,) = {
        (case.gradient_length, case.num_learning_epochs, *case.options.values())
        for case in trained
        if case.algorithm == "distillation"
    }
    names = ("gradient_length", "num_learning_epochs", "num_mini_batches", "buffer_rollouts")
    assert student == tuple(getattr(DistillationOptions(), name) for name in names)
    assert all(case.tf32 and case.done_rate == 0.002 for case in trained)


@pytest.mark.parametrize(
    ("camera_period", "rnn_type", "classes"),
    [
        (1, "gru", [CNNRNNModel, SteppedCNNRNNModel]),
        (5, "lstm", [CNNRNNModel, SteppedCNNRNNModel]),
        (2, None, [CNNModel, CNNModel]),
    ],
)
def test_a_camera_model_is_compared_with_a_stepped_one(camera_period, rnn_type, classes):
    sizes: dict[str, Any] = {"camera_period": camera_period, "obs_dims": {"policy": 53}}
    case = replace(TINY, rnn_type=rnn_type, done_rate=0.2, **sizes)
    check_equal(case)
    ours, theirs = (build(case, library).student for library in LIBRARIES)
    assert [type(ours), type(theirs)] == classes
    assert [*ours.state_dict()] == [*theirs.state_dict()]
