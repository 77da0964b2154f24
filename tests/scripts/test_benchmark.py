"""The benchmark compares equal computations, counts right, and writes what it measured."""

import json
import re
import time
from dataclasses import replace

import pytest
import torch

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.bench import case as cases
from rsl_tbptt.bench import growth
from rsl_tbptt.bench import speed as speeds
from rsl_tbptt.bench.case import Case
from rsl_tbptt.bench.memory import Memory, Plan
from rsl_tbptt.bench.profile import StepsShare
from rsl_tbptt.bench.speed import Speed
from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import rows as all_rows
from scripts.benchmark import suite
from scripts.benchmark.figures import save_figures
from scripts.benchmark.report import format_report
from scripts.benchmark.results import MemoryResult, Results, TimeResult
from scripts.benchmark.rows import ROWS, select, tiny

SMALL = ("--num-envs=512", "--num-steps=16", "--gradient-length=8", "--rnn-hidden-dim=128")
TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)


@pytest.fixture
def few_rows(monkeypatch):
    """Leave a few rows of every kind."""
    names = (
        "distillation-64-lstm-float32",
        "distillation-64-lstm-bfloat16",
        "distillation-64-gru-float32",
        "ppo-1024-dones-0-lstm-float32",
        "ppo-1024-dones-0.1-lstm-float32",
        "ppo-cost-of-dones",
        "distillation-cost-of-memory-512",
        "ppo-memory-24",
    )
    rows = [row for row in ROWS if row.name in names]
    assert len(rows) == len(names)
    monkeypatch.setattr(all_rows, "ROWS", rows)
    return rows


@pytest.fixture
def _checked_anew():
    """Forget which cases were equal, before and after."""
    speeds._difference.cache_clear()
    yield
    speeds._difference.cache_clear()


def run(monkeypatch, *options):
    monkeypatch.setattr("sys.argv", ["benchmark", *map(str, options)])
    return benchmark.main()


def results(rows=ROWS):
    """Return made-up times: rsl_rl takes 2, 3 and 10 times as long as we do."""
    speed = Speed(ours=[1.0, 2.0, 4.0], theirs=[2.0, 20.0, 12.0])
    cost = Speed(ours=[1.0, 2.0], theirs=[1.5, 2.0])
    limit = {"flops": 10**9, "products_seconds": 1.0}
    memory = Memory(storage=1.0, update_peak=10.0, process_peak=100.0)
    rsl_rl = replace(memory, process_peak=1000.0, update_peak=8.0)
    of = {kind: [r for r in rows if r.measure == kind] for kind in ("speed", "cost", "memory")}
    return Results(
        about={
            "finished": "now",
            "minutes": 1.0,
            "threads": 1,
            "machine": {"device": "cpu"},
            "versions": dict.fromkeys(("rsl-tbptt", "rsl-rl-lib", "torch", "python"), "1"),
        },
        rates={name: {"(1, 2) (2, 3)": 1e9} for name in ("float32", "bfloat16")},
        speed=[TimeResult(row=row, speed=speed, **limit) for row in of["speed"]],
        cost=[TimeResult(row=row, speed=cost, **limit) for row in of["cost"]],
        memory=[MemoryResult(row=row, ours=memory, other=rsl_rl) for row in of["memory"]],
    )


def spaced_once(report):
    """Return Markdown without the spaces that align its columns."""
    return re.sub(" +", " ", report)


def test_a_run_writes_report_data_and_figures(few_rows, monkeypatch, tmp_path, capsys):
    peaks = {"rsl_tbptt": 3.0, "rsl_rl": 12.0}
    monkeypatch.setattr(
        suite,
        "measure_in_own_process",
        lambda case, library: Memory(storage=1.0, update_peak=2.0, process_peak=peaks[library]),
    )
    output = tmp_path / "bench"
    assert run(monkeypatch, "suite", "--quick", "--output", output) == 0
    report = (output / "benchmark.md").read_text(encoding="utf-8")
    assert report in capsys.readouterr().out
    assert report.count("| distillation, LSTM-8, float32") == 1
    assert "done rate 0.1 |" not in spaced_once(report)  # a figure's point
    assert "casts it back to float32" in report
    files = {"benchmark.md", "benchmark.json", "time.svg", "done_rate.svg", "memory.svg"}
    assert {path.name for path in output.iterdir()} == files
    data = json.loads((output / "benchmark.json").read_text(encoding="utf-8"))
    for kind in ("speed", "cost", "memory"):
        names = [row.name for row in few_rows if row.measure == kind]
        assert [row["row"]["name"] for row in data[kind]] == names
    for row in data["speed"]:
        assert len(row["speed"]["ours"]) == len(row["speed"]["theirs"]) == 2
        assert row["ratio"] > 0
        rate = max(
            data["rates"]["bfloat16" if "bfloat16" in row["row"]["name"] else "float32"].values()
        )
        assert row["products_seconds"] == pytest.approx(row["flops"] / rate)
    assert data["about"]["versions"]["torch"] == torch.__version__.split("+")[0]
    assert data["memory"][0]["ours"]["process_peak"] == 3.0
    assert data["memory"][0]["ratio"] == 0.25
    assert data["memory"][0]["reached"] is None


@pytest.mark.usefixtures("_checked_anew")
def test_different_computations_are_not_reported(monkeypatch, tmp_path, capsys):
    def half_a_percent_more(*args, learning_rate=1e-3, **options):
        return TbpttDistillation(*args, learning_rate=1.005 * learning_rate, **options)

    monkeypatch.setitem(cases.CLASSES, ("distillation", "rsl_tbptt"), half_a_percent_more)
    output = tmp_path / "bench"
    options = ("--quick", "--rows", "distillation-64", "--output", output)
    assert run(monkeypatch, "suite", *options) != 0
    assert "times of different computations are not compared" in capsys.readouterr().err
    assert not output.exists()


def test_rows_that_do_not_exist_are_refused(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "suite", "--rows", "ppo-7", "--output", tmp_path / "bench") != 0
    assert "--rows is 'ppo-7', expected a part of one of ['dist" in capsys.readouterr().err


# Isaac Lab warns of what it will change, the profiler of its memory, we of long windows.
@pytest.mark.filterwarnings(
    "ignore:.*(deprecated|Profiler clears events|more than num_steps_per_env)"
)
def test_agents_are_measured_as_large_as_they_fit(monkeypatch, tmp_path, capsys):
    """With made-up peaks: rsl_rl takes 25 MB per environment, we 1 MB, and plan 1.2 MB."""
    pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")
    rows = [
        replace(row, case=tiny(row.case))
        for row in all_rows.rows_of_agents()
        if row.name in ("anymal-d-ppo", "headline-32", "plan-gear-4096", "long-128", "steps-4")
    ]
    monkeypatch.setattr(all_rows, "rows_of_agents", lambda: iter(rows))
    monkeypatch.setattr(all_rows, "tiny", lambda case: case)

    def measured(case, library):
        peak = {"rsl_rl": 25.0, "rsl_tbptt": 1.0}[library] * case.num_envs
        return Memory(storage=0.0, update_peak=peak, process_peak=peak, seconds=1.0)

    monkeypatch.setattr(growth, "measure_in_own_process", measured)
    monkeypatch.setattr(suite, "measure_in_own_process", measured)
    monkeypatch.setattr(
        growth,
        "plan_in_own_process",
        lambda case: Plan(predicted=1.2 * case.num_envs, num_envs=1, num_micro_batches=1),
    )
    output = tmp_path / "agents"
    options = ("--gigabytes", "2.5", "--output", output)
    assert run(monkeypatch, "agents", "--quick", *options) == 0
    report = spaced_once((output / "benchmark.md").read_text(encoding="utf-8"))
    assert "| anymal-d-ppo | 128 | 100 | 100 | 5 | 5 | 32, 64, 96 |" in report
    assert "| anymal-d-ppo: PPO, LSTM-8, float32, N=100, T=3, K=3, done rate 0.001 |" in report
    assert "| 2500 MB | 100 MB | 0.040 | - | 2500 MB | 100 MB | - |" in report
    assert "| anymal-d-ppo | 128 | 3 | 154 MB | 128 MB | +20.0 % | 32, 64, 96 | 128 MB |" in report
    assert "| plan-gear-4096 | 128 | 64 | 154 MB | 128 MB | +20.0 % | 32, 64, 96 | 128 MB" in report
    assert re.search(
        r"^\| PPO, 2 layers of LSTM-8.*, N=4, .* \| 2 \| \d+% \| \d+ \|$", report, re.M
    )
    assert "headline-32" in report[report.index("## Targets") :]
    files = {"benchmark.md", "benchmark.json", "long.svg"}
    assert {path.name for path in output.iterdir()} == files
    data = json.loads((output / "benchmark.json").read_text(encoding="utf-8"))
    assert [row["row"]["name"] for row in data["speed"]] == ["headline-32", "anymal-d-ppo"]
    assert [plan["error"] for plan in data["plans"]] == pytest.approx([0.2, 0.2])
    assert "wrote" in capsys.readouterr().out


@pytest.fixture
def processes(monkeypatch):
    """Count the processes that measure memory at once; nothing else is measured."""
    now, most = [], []

    def measured(case, library):
        now.append(case)
        most.append(len(now))
        time.sleep(0.05)
        now.pop()
        return Memory(storage=1.0, update_peak=1.0, process_peak=1.0)

    monkeypatch.setattr(suite, "measure_in_own_process", measured)
    monkeypatch.setattr(suite, "product_rates", lambda *_: {"float32": {"(1, 2) (2, 3)": 1e9}})
    monkeypatch.setattr(suite, "machine", lambda device: {"device": device})
    return most


@pytest.mark.parametrize(("device", "expected"), [("cpu", 2), ("cuda:0", 1)])
def test_one_process_at_a_time_measures_the_memory_of_a_gpu(processes, device, expected):
    suite.measure(select(ROWS, "ppo-memory", device, quick=True), device, 8)
    assert max(processes) == expected


@pytest.mark.usefixtures("processes")
def test_steps_that_a_gpu_hides_from_the_profiler_are_left_out(monkeypatch):
    """On a CUDA device it shows no product of a step, whose rate would be 0 / 0."""
    hidden = StepsShare(case=TINY, num_envs=4, share=0.0, flops=0, seconds=0.0)
    monkeypatch.setattr(suite, "share_of_steps", lambda case: hidden)
    row = replace(ROWS[0], measure="steps", case=replace(TINY, device="cuda:0"))
    measured = suite.measure([row], "cuda:0", 8)
    assert "## Targets" in format_report(measured, {})


def test_names_of_rows_are_unique():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    on_a_gpu = select(ROWS, "", "cuda:0", quick=True)
    assert [row.name for row in on_a_gpu] == names
    assert all(row.case.device == "cuda:0" for row in on_a_gpu)


def test_the_report_marks_missed_targets():
    report = spaced_once(format_report(results(), {}))
    row = re.escape("LSTM-256, float32, N=64, T=24, K=24, done rate 0.05")
    times = r"12000 ms | 2000 ms | 3.00 | 2.00 to 10.00 | at least 2.8 | 1000 ms, 50% |"
    assert re.search(rf"^\| distillation, {row} \| {re.escape(times)}$", report, re.M)
    assert "3.00 | 2.00 to 10.00 | at least 5.8, **missed**" in report
    cost = "ppo-cost-of-dones: our update takes 1750 ms, 1.25 times as long as with"
    assert f"{cost} {{'done_rate': 0.0}}" in report
    assert cost in format_report(results(select(ROWS, "cost", "cpu")), {})
    assert "at most 1.1, **missed**" in report
    assert "0.100 | at most 0.2 |" in report
    growth = "our update() takes 10 MB, 1.25 times as much as with {'num_envs': 64}"
    assert f"camera-memory-growth-period-1: {growth}" in report
    assert "0.100 | at most 0.08, **missed**" in report
    missed = report[report.index("Missed: ") :].split(".\n")[0]
    assert missed == (
        "Missed: ppo-1024-dones-0.2-lstm-float32, ppo-256x128-lstm-float32,"
        " camera-256-period-5-lstm-float32, ppo-cost-of-dones, ppo-memory-96,"
        " camera-memory-growth-period-1, camera-memory-growth-period-5"
    )


def test_figures_without_rows_are_left_out(tmp_path):
    figures = save_figures(results(select(ROWS, "distillation-64", "cpu")), tmp_path)
    assert list(figures.values()) == ["time.svg"]
    assert [path.name for path in tmp_path.iterdir()] == ["time.svg"]


@pytest.mark.parametrize("name", ["suite", "agents", "peers"])
def test_every_measurement_explains_itself(name, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, name, "--help")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m scripts.benchmark {name}")
