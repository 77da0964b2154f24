"""The benchmark compares equal computations, counts correctly, and writes its measurements."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rsl_tbptt.models import CNNRNNModel
from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import memory, suite
from scripts.benchmark.case import LIBRARIES, Case, build, check_equal, fill
from scripts.benchmark.limit import update_flops
from scripts.benchmark.memory import Memory, fit
from scripts.benchmark.stepped import SteppedCNNRNNModel
from scripts.benchmark.suite import load_rows

TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)
LARGE = Case(
    num_envs=4096, num_steps=8, gradient_length=8, num_mini_batches=16, num_learning_epochs=8
)
ROWS = [*load_rows("rows"), *load_rows("agents")]


@pytest.fixture
def _made_up(monkeypatch):
    """Pretend that an epoch of rsl_rl takes 100 + N megabytes and 0.1 N seconds, ours a tenth.

    Plans predict 1.2 megabytes per environment.
    """

    def call(function, case, *arguments):
        if function is suite.alternate:
            return function(case, *arguments)
        if function is memory.plan:
            return 1.2 * case.num_envs, 1
        share = 1.0 if arguments[0] == "rsl_rl" else 0.1
        peak, seconds = share * (100.0 + case.num_envs), 0.1 * share * case.num_envs
        return Memory(process_peak=peak, update_peak=peak, predicted=None, seconds=seconds)

    monkeypatch.setattr(memory, "in_own_process", call)
    monkeypatch.setattr(suite, "in_own_process", call)
    monkeypatch.setattr(suite, "product_rates", lambda _: {"float32": 1e9, "bfloat16": 1e9})


def run(monkeypatch, *options):
    monkeypatch.setattr("sys.argv", ["benchmark", *map(str, options)])
    return benchmark.main()


@pytest.mark.usefixtures("_made_up")
def test_a_run_writes_report_data_and_figures(monkeypatch, tmp_path, capsys):
    names = (
        "distillation-64-lstm-bfloat16",
        "distillation-64-lstm-float32",
        "ppo-1024-dones-0.1-lstm-float32",
        "ppo-cost-of-dones",
        "ppo-memory-24",
        "camera-memory-growth-period-5",
    )
    monkeypatch.setattr(suite, "load_rows", lambda _: [row for row in ROWS if row.name in names])
    output = tmp_path / "bench"
    assert run(monkeypatch, "suite", "--quick", "--output", output) == 0
    report = (output / "benchmark.md").read_text(encoding="utf-8")
    assert report in capsys.readouterr().out
    assert report.count("| distillation, LSTM-8, float32") == 1
    assert "done rate 0.1 |" not in report  # a figure's point
    assert "| 132 MB | 13 MB | 0.100 |" in report.replace("| - ", "")
    growth = "our update() takes 13 MB, 0.80 times as much as with {'num_envs': 64}"
    assert f"camera-memory-growth-period-5: {growth}" in report
    files = {"benchmark.md", "benchmark.json", "time.svg", "done_rate.svg", "memory.svg"}
    assert {path.name for path in output.iterdir()} == files
    data = json.loads((output / "benchmark.json").read_text(encoding="utf-8"))
    assert {row["name"] for kind in ("speed", "cost", "memory") for row in data[kind]} == {*names}
    for row in data["speed"]:
        assert [len(seconds) for seconds in row["seconds"]] == [row["pairs"]] * 2
        assert row["products"] > 0
    assert data["about"]["versions"]["torch"] == torch.__version__.split("+")[0]


def test_different_computations_are_not_reported(monkeypatch, tmp_path, capsys):
    def differ(case):
        raise ValueError("times of different computations are not compared.")

    monkeypatch.setattr(suite, "check_equal", differ)
    output = tmp_path / "bench"
    options = ("--quick", "--rows", "distillation-64", "--output", output)
    assert run(monkeypatch, "suite", *options) != 0
    assert "times of different computations are not compared" in capsys.readouterr().err
    assert not output.exists()


def test_rows_that_do_not_exist_are_refused(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "suite", "--rows", "ppo-7", "--output", tmp_path / "bench") != 0
    assert "--rows is 'ppo-7', expected a part of one of ['dist" in capsys.readouterr().err


@pytest.mark.parametrize(("camera_period", "rnn_type"), [(1, "gru"), (5, "lstm")])
def test_a_camera_model_is_compared_with_a_stepped_one(camera_period, rnn_type):
    sizes = {"image_size": (58, 87), "obs_dims": {"policy": 53}}
    case = replace(TINY, camera_period=camera_period, rnn_type=rnn_type, done_rate=0.2, **sizes)
    check_equal(case)
    ours, theirs = (build(case, library).student for library in LIBRARIES)
    assert type(ours) is CNNRNNModel
    assert type(theirs) is SteppedCNNRNNModel
    assert [*ours.state_dict()] == [*theirs.state_dict()]


@pytest.mark.parametrize(
    ("algorithm", "layers", "rnn_type", "camera_period"),
    [("distillation", 2, "lstm", 1), ("ppo", 1, "gru", None)],
)
def test_operations_are_those_of_rsl_rls_update(
    algorithm, layers, rnn_type, camera_period, monkeypatch
):
    case = replace(
        TINY,
        algorithm=algorithm,
        num_envs=16,
        rnn_type=rnn_type,
        rnn_num_layers=layers,
        rnn_hidden_dim=64,
        done_rate=0.0,
        camera_period=camera_period,
        num_learning_epochs=2,
    )
    rsl_rl = build(case, "rsl_rl")
    fill(rsl_rl, case, seed=0)
    # Without oneDNN torch writes the recurrence as products, which the counter sees.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with FlopCounterMode(display=False) as counter:
        rsl_rl.update()
    monkeypatch.undo()
    assert update_flops(case) == pytest.approx(counter.get_total_flops(), rel=0.1)


@pytest.mark.usefixtures("_made_up")
@pytest.mark.parametrize(
    ("megabytes", "seconds", "num_envs", "num_epochs"),
    [
        (1e6, 1e6, 4096, 8),  # all of it
        (1000.0, 1e6, 896, 8),  # 900 fit, and 896 is a multiple of the mini-batches
        (1000.0, 100.0, 896, 1),  # an epoch of these takes 90 s
        (1000.0, 50.0, 496, 1),  # one of 500 takes 50 s
    ],
)
def test_rsl_rl_gets_as_many_environments_as_fit(megabytes, seconds, num_envs, num_epochs):
    found = fit(LARGE, megabytes, seconds)
    assert (found.num_envs, found.num_learning_epochs) == (num_envs, num_epochs)


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_control_step_is_timed_in_every_form(monkeypatch, capsys):
    run(monkeypatch, "control-step", "--rnn-hidden-dim", "8")
    printed = capsys.readouterr().out
    for form in ("onnxruntime, rsl_tbptt.deploy", "TorchScript", "C, -O2"):
        assert f"| {form} " in printed
