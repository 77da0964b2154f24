"""The benchmark compares equal computations, counts correctly, and writes its measurements."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rsl_rl.models import CNNModel
from torch import nn
from torch.autograd import DeviceType

from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.models import CNNRNNModel
from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import memory, suite
from scripts.benchmark.case import LIBRARIES, Case, build, check_equal, fill
from scripts.benchmark.memory import measure_memory
from scripts.benchmark.profiling import device_time
from scripts.benchmark.stepped import SteppedCNNRNNModel
from scripts.benchmark.suite import load_rows

TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)
ROWS = [*load_rows("rows"), *load_rows("agents")]


@pytest.fixture
def _made_up(monkeypatch):
    """Pretend that rsl_rl takes 100 + N megabytes, ours a tenth."""

    def call(function, case, *arguments):
        if function is suite.alternate:
            return function(case, *arguments)
        return (1.0 if arguments[0] == "rsl_rl" else 0.1) * (100.0 + case.num_envs)

    monkeypatch.setattr(memory, "in_own_process", call)
    monkeypatch.setattr(suite, "in_own_process", call)


def run(monkeypatch, *options):
    monkeypatch.setattr("sys.argv", ["benchmark", *map(str, options)])
    return benchmark.main()


@pytest.mark.usefixtures("_made_up")
def test_a_run_writes_report_and_data(monkeypatch, tmp_path, capsys):
    names = (
        "distillation-64-lstm-bfloat16",
        "distillation-64-lstm-float32",
        "ppo-cost-of-dones",
        "ppo-memory-24",
    )
    monkeypatch.setattr(suite, "load_rows", lambda _: [row for row in ROWS if row.name in names])
    output = tmp_path / "bench"
    assert run(monkeypatch, "suite", "--quick", "--output", output) == 0
    report = (output / "benchmark.md").read_text(encoding="utf-8")
    assert report in capsys.readouterr().out
    assert report.count("| distillation, LSTM-8, float32") == 1
    assert "| 132 MB | 13 MB | 0.100 |" in report
    files = {"benchmark.md", "benchmark.json"}
    assert {path.name for path in output.iterdir()} == files
    data = json.loads((output / "benchmark.json").read_text(encoding="utf-8"))
    assert {row["name"] for kind in ("speed", "cost", "memory") for row in data[kind]} == {*names}
    for row in data["speed"]:
        assert [len(seconds) for seconds in row["seconds"]] == [row["pairs"]] * 2
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


def test_rows_have_unique_names_and_are_compared_with_their_targets():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    speed = next(row for row in ROWS if row.name == "distillation-64-lstm-float32")
    assert [speed.result(ratio)["reached"] for ratio in (2.8, 2.7)] == [True, False]
    cost = next(row for row in ROWS if row.name == "ppo-cost-of-dones")
    assert [cost.result(ratio)["reached"] for ratio in (1.1, 1.2)] == [True, False]
    assert replace(cost, target=None).result(9.0)["reached"] is None


@pytest.mark.parametrize(("camera_period", "rnn_type"), [(1, "gru"), (5, "lstm")])
def test_a_camera_model_is_compared_with_a_stepped_one(camera_period, rnn_type):
    sizes = {"camera_period": camera_period, "obs_dims": {"policy": 53}}
    case = replace(TINY, rnn_type=rnn_type, done_rate=0.2, **sizes)
    check_equal(case)
    ours, theirs = (build(case, library).student for library in LIBRARIES)
    assert type(ours) is CNNRNNModel
    assert type(theirs) is SteppedCNNRNNModel
    assert [*ours.state_dict()] == [*theirs.state_dict()]


def test_a_camera_repeats_each_frame_for_its_period():
    case = replace(TINY, camera_period=3)
    algorithm = build(case, "rsl_rl")
    fill(algorithm, case, seed=0)
    frames = algorithm.storage.observations["camera"].flatten(2)
    new = (frames[1:] != frames[:-1]).any(-1)
    expected = [[(env + step) % 3 == 0 for env in range(8)] for step in range(1, 6)]
    assert new.tolist() == expected


def test_without_memory_both_libraries_train_rsl_rls_cnn():
    case = replace(TINY, rnn_type=None, camera_period=2)
    check_equal(case)
    assert {type(build(case, library).student) for library in LIBRARIES} == {CNNModel}
    assert str(case).startswith("distillation, float32, N=8, ")


BUFFER = {"buffer_rollouts": 3, "num_mini_batches": 2}
CAMERA = replace(TINY, camera_period=2, options=BUFFER)


def test_bytes_stay_bytes_and_are_seen_as_shares():
    case = replace(CAMERA, frame_dtype="uint8")
    algorithm = build(case, "rsl_tbptt")
    fill(algorithm, case, seed=0)
    algorithm.update()
    (frames,) = algorithm.experience.buffer.rollout.obs.frames.values()
    assert frames.dtype == algorithm.storage.observations["camera"].dtype == torch.uint8
    assert algorithm.student.image_scale == 1 / 255
    assert "uint8 frames, camera period 2" in str(case)


def test_the_replay_buffer_of_a_measured_update_is_full(monkeypatch):
    kept = []

    def watched(case, library):
        algorithm = build(case, library)
        update = algorithm.update

        def counting():
            buffer = algorithm.experience.buffer
            kept.append(buffer and (buffer.num_kept, buffer.capacity))
            return update()

        monkeypatch.setattr(algorithm, "update", counting)
        return algorithm

    monkeypatch.setattr(memory, "build", watched)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert measure_memory(CAMERA, "rsl_tbptt") > 0
    assert kept == [None, None, (3 * 8, 3 * 8)]


def test_a_large_row_runs_on_a_cpu_if_it_is_named_in_full():
    name = "frames-memory-4096-uint8"
    assert [row.name for row in suite.select(ROWS, name, "cpu")] == [name]
    assert {row.case.num_envs for row in suite.select(ROWS, "frames", "cpu")} == {1024}


@pytest.mark.parametrize(
    ("agent", "kind"),
    [("anymal-d-ppo", "recurrent_"), ("anymal-d-distillation", "distillation_recurrent_")],
)
@pytest.mark.filterwarnings("ignore:.*(deprecated|never backpropagated|more than num_steps)")
def test_agents_are_those_of_isaac_lab(agent, kind):
    """The file has each agent's task in a comment next to its name."""
    pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry

    text = suite.Path(suite.__file__).with_name("agents.yaml").read_text()
    (task,) = re.findall(rf"name: {agent}  # (\S+)", text)
    entries = (f"rsl_rl_{kind}cfg_entry_point", "env_cfg_entry_point")
    cfg, env = (load_cfg_from_registry(task, entry) for entry in entries)
    case = next(row.case for row in ROWS if row.name == agent)
    assert (case.num_envs, case.num_steps) == (env.scene.num_envs, cfg.num_steps_per_env)
    assert case.done_rate == pytest.approx(env.decimation * env.sim.dt / env.episode_length_s, 1e-4)
    algorithm = build(replace(case, num_envs=32, num_steps=2), "rsl_rl")
    names = ["num_learning_epochs", "num_mini_batches", "learning_rate", "entropy_coef", "schedule"]
    names += ["desired_kl", "max_grad_norm", "gamma", "lam", "clip_param", "value_loss_coef"]
    for name in [*names, "loss_type"]:
        if hasattr(cfg.algorithm, name) and hasattr(algorithm, name):
            assert getattr(algorithm, name) == getattr(cfg.algorithm, name), name
    if case.algorithm == "distillation":
        assert case.gradient_length == cfg.algorithm.gradient_length
    for role in ("actor", "critic", "student", "teacher"):
        if options := getattr(cfg, role, None):
            model = getattr(algorithm, role)
            widths = [layer.out_features for layer in model.mlp if isinstance(layer, nn.Linear)]
            assert widths[:-1] == options.hidden_dims
            assert model.rnn.rnn.num_layers == options.rnn_num_layers
            assert model.rnn.rnn.hidden_size == options.rnn_hidden_dim
            assert model.obs_normalization == options.obs_normalization


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_the_profile_shows_the_products(monkeypatch, capsys):
    sizes = ("--num-envs=8", "--num-steps=4", "--gradient-length=4", "--rnn-hidden-dim=8")
    assert run(monkeypatch, "profile", *sizes) == 0
    assert re.search(r"^ +aten::addmm_? ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("stage", ["rollout", "update"])
def test_the_process_peaks_in_rollout_or_update(stage, monkeypatch):
    stages: dict[str, Any] = dict.fromkeys(("rollout", "update"), lambda *_: None)
    stages[stage] = lambda *_: torch.ones(25_000_000)  # 100 MB, freed at once
    algorithm = SimpleNamespace(update=stages["update"])
    monkeypatch.setattr(memory, "build", lambda case, library: algorithm)
    monkeypatch.setattr(memory, "fill", lambda *_, seed=0: stages["rollout"]())
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert 99 < measure_memory(TINY, "rsl_rl") < 105


def test_the_host_is_timed_next_to_rsl_rls(monkeypatch, capsys):
    run(monkeypatch, "host", "--updates", "1")
    printed = capsys.readouterr().out
    row = r"\| (distillation|ppo) +\| rsl_(tbptt|rl) +\| \d+\.\d\d +\|"
    rows = [("distillation", "tbptt"), ("ppo", "tbptt"), ("ppo", "rl")]
    assert re.findall(row, printed) == rows


def test_time_on_a_device_counts_once_what_overlaps():
    spans = [(0, 10, "CPU"), (5, 10, "CUDA"), (8, 20, "CUDA"), (9, 11, "CUDA"), (30, 31, "CUDA")]
    events = [
        SimpleNamespace(
            device_type=getattr(DeviceType, device),
            time_range=SimpleNamespace(start=start, end=end),
        )
        for start, end, device in spans
    ]
    profiler: Any = SimpleNamespace(events=lambda: events)
    assert device_time(profiler) == pytest.approx(16e-6)


def test_the_rows_of_what_people_train_are_the_defaults():
    """Those of ``TbpttDistillation``; a CPU leaves out the large ones."""
    trained = [row for row in ROWS if row.name.startswith("trained")]
    (student,) = {
        (row.case.gradient_length, row.case.num_learning_epochs, *row.case.options.values())
        for row in trained
        if row.case.algorithm == "distillation"
    }
    options = DistillationOptions()
    names = ("gradient_length", "num_learning_epochs", "num_mini_batches", "buffer_rollouts")
    assert student == tuple(getattr(options, name) for name in names)
    on_cpu = suite.select(trained, "", "cpu")
    assert {row.case.num_envs for row in on_cpu} == {256}
    assert all(row.case.tf32 and row.case.done_rate == 0.002 for row in trained)
