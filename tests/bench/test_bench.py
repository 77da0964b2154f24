"""`rsl-tbptt bench` times equal computations only, in turn, and says what it cannot do."""

import argparse
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from rsl_tbptt import bench
from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.bench import case as cases
from rsl_tbptt.bench import limit
from rsl_tbptt.bench import speed as speeds
from rsl_tbptt.bench.camera import SteppedCNNRNNModel
from rsl_tbptt.bench.case import Case, build, fill
from rsl_tbptt.bench.memory import Memory
from rsl_tbptt.bench.speed import (
    LIBRARIES,
    Speed,
    alternate,
    check_equal,
    measure_speed,
    restore_state,
    small_copies,
)
from rsl_tbptt.models import CNNRNNModel

TABLE_ROW = r"^\| [\d.]+ ms \| [\d.]+ ms( \| [\d.]+){3} \| [\d.]+ ms, \d+% \|$"
TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)
FEW = ("--num-envs=8", "--num-steps=4", "--gradient-length=4", "--rnn-hidden-dim=8")


@pytest.fixture
def _checked_anew():
    """Forget which cases were equal, before and after."""
    speeds._difference.cache_clear()
    yield
    speeds._difference.cache_clear()


def run(*options):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(options))


def test_a_table_is_printed(capsys):
    assert run(*FEW, "--num-mini-batches=2", "--rnn-num-layers=2") == 0
    assert "PPO, 2 layers of LSTM-8, float32, N=8, T=4" in (printed := capsys.readouterr().out)
    assert f"torch {torch.__version__.split('+')[0]}" in printed
    assert re.search(TABLE_ROW, re.sub(" +", " ", printed), re.M)


@pytest.mark.usefixtures("_checked_anew")
@pytest.mark.parametrize(
    ("algorithm", "other"), [("distillation", TbpttDistillation), ("ppo", TbpttPPO)]
)
def test_different_computations_are_not_compared(algorithm, other, monkeypatch, capsys):
    def half_a_percent_more(*args, learning_rate=1e-3, **options):
        return other(*args, learning_rate=1.005 * learning_rate, **options)

    monkeypatch.setitem(cases.CLASSES, (algorithm, "rsl_tbptt"), half_a_percent_more)
    wrong = r"parameters' change by one update differs by [45]\.\de-03 .* are not compared"
    with pytest.raises(ValueError, match=wrong):
        run(*FEW, f"--algorithm={algorithm}")
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--device=cuda:99", r"device is 'cuda:99', expected cpu or cuda:<index> of a GPU"),
        ("--device=gpu", r"device is 'gpu', expected cpu or cuda:<index> of a GPU"),
        ("--num-steps=0", r"num_steps is 0, expected at least 1\."),
        ("--done-rate=5", r"done_rate is 5\.0, expected a share from 0 to 1\."),
        ("--num-envs=10", r"num_envs is 10, expected a multiple of num_mini_batches \(4\)"),
        ("--num-envs=4", r"num_envs is 4, expected a multiple of num_mini_batches \(4\), at least"),
        ("--camera-period=0", r"camera_period is 0, expected at least 1 or None\."),
        ("--camera-period=5", r"camera_period is 5, expected None with ppo: only distillation"),
        ("--pairs=0", r"pairs is 0, expected at least 1\."),
    ],
)
def test_wrong_options_are_named(option, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        run(*FEW, option)


def test_rsl_rl_of_the_policy_era_is_refused(monkeypatch):
    monkeypatch.setattr("rsl_tbptt.compat.version", lambda _: "3.1.2")
    monkeypatch.setattr(bench, "versions", lambda: {"rsl-rl-lib": "3.1.2"})
    with pytest.raises(ImportError, match=r"rsl-rl-lib is 3\.1\.2, expected 5\.0\.1 to 5\.5: "):
        run(*FEW)


@pytest.mark.parametrize(("tf32", "said"), [(True, "TF32"), (False, "full precision")])
def test_on_a_gpu_the_title_says_how_both_libraries_multiply(monkeypatch, tf32, said):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    case = Case(algorithm="ppo", num_envs=64, num_steps=4, gradient_length=4)
    assert "LSTM-256, float32, N=64" in cases.title(case)
    on_gpu = cases.title(replace(case, device="cuda:0"))
    assert f"LSTM-256, float32 (memory of both libraries in {said}), N=64" in on_gpu
    rounded = replace(case, device="cuda:0", use_mixed_precision=True)
    assert "LSTM-256, bfloat16, N=64" in cases.title(rounded)


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)
@pytest.mark.parametrize("tf32", [True, False])
def test_the_rate_of_products_on_a_gpu_is_in_the_precision_of_the_memory(monkeypatch, tf32):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    monkeypatch.setattr(limit.torch, "randn", lambda *shape, device: torch.zeros(shape))
    seen = set()

    def rate(a, b, seconds):
        seen.add(torch.backends.cuda.matmul.fp32_precision == "tf32")
        return 1.0

    monkeypatch.setattr(limit, "_rate", rate)
    limit.product_rates("cuda:0", 0.0)
    assert seen == {tf32}


def test_the_options_wait_for_no_import():
    code = "import sys, rsl_tbptt.bench; print({'torch', 'rsl_rl'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_the_ratio_is_the_median_of_the_pairs():
    speed = Speed(ours=[1.0, 2.0, 4.0], theirs=[2.0, 20.0, 12.0])
    assert speed.ratios == [2.0, 10.0, 3.0]
    assert speed.ratio == 3.0


class Turns:
    """Stand-in for an algorithm that notes when it is updated."""

    def __init__(self, library, turns):
        self.library, self.turns = library, turns

    def update(self):
        self.turns.append(self.library)


def test_libraries_take_turns(monkeypatch):
    turns = []
    monkeypatch.setattr(speeds, "build", lambda case, library: Turns(library, turns))
    monkeypatch.setattr(speeds, "fill", lambda algorithm, case, seed: None)
    times = alternate([(library, TINY) for library in LIBRARIES], num_updates=2)
    assert turns == [*LIBRARIES] * 3
    assert [len(seconds) for seconds in times] == [2, 2]  # without those to warm up


def test_equality_comes_before_time(monkeypatch):
    turns = []
    monkeypatch.setattr(speeds, "check_equal", lambda case: turns.append("check"))
    monkeypatch.setattr(speeds, "build", lambda case, library: Turns(library, turns))
    monkeypatch.setattr(speeds, "fill", lambda algorithm, case, seed: None)
    speed = measure_speed(TINY, num_pairs=1)
    assert turns == ["check", *LIBRARIES, *LIBRARIES]
    assert len(speed.ours) == len(speed.theirs) == 1


def test_equality_is_checked_over_all_steps_and_with_all_environments():
    case = Case(algorithm="ppo", num_envs=512, num_steps=128, gradient_length=32)
    sizes = [(c.num_envs, c.num_steps, c.gradient_length) for c in small_copies(case)]
    assert sizes == [(32, 128, 128), (512, 4, 4)]


@pytest.mark.parametrize(("num_mini_batches", "num_envs"), [(3, 30), (20, 40), (256, 512)])
def test_few_environments_fill_the_mini_batches(num_mini_batches, num_envs):
    case = Case(algorithm="ppo", num_envs=15360, num_steps=8, gradient_length=8)
    few, _ = small_copies(replace(case, num_mini_batches=num_mini_batches))
    assert few.num_envs == num_envs


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
@pytest.mark.parametrize("algorithm", ["distillation", "ppo"])
def test_the_check_passes(algorithm, rnn_type):
    check_equal(replace(TINY, algorithm=algorithm, rnn_type=rnn_type, done_rate=0.2))


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
@pytest.mark.parametrize("camera_period", [1, 5])
def test_a_model_that_sees_is_compared_with_one_that_is_stepped(camera_period, rnn_type):
    case = replace(TINY, camera_period=camera_period, rnn_type=rnn_type, done_rate=0.2)
    check_equal(case)
    ours, theirs = (build(case, library).student for library in LIBRARIES)
    assert type(ours) is CNNRNNModel
    assert type(theirs) is SteppedCNNRNNModel
    assert [*ours.state_dict()] == [*theirs.state_dict()]


def test_a_camera_shows_its_frames_for_a_while():
    case = replace(TINY, camera_period=3)
    algorithm = build(case, "rsl_rl")
    fill(algorithm, case, seed=0)
    frames = algorithm.storage.observations["camera"].flatten(2)
    new = (frames[1:] != frames[:-1]).any(-1)
    expected = [[(env + step) % 3 == 0 for env in range(8)] for step in range(1, 6)]
    assert new.tolist() == expected


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_bfloat16_goes_on_after_an_update(library, rnn_type):
    case = replace(TINY, use_mixed_precision=True, rnn_type=rnn_type)
    algorithm = build(case, library)
    for seed in range(3):
        fill(algorithm, case, seed)
        algorithm.update()
        restore_state(algorithm, case)
    state = algorithm.student.get_hidden_state()
    assert all(s.dtype == torch.float32 for s in (state if rnn_type == "lstm" else [state]))


def test_memory_is_shown_beside_time(monkeypatch, capsys):
    monkeypatch.setattr(
        "rsl_tbptt.bench.memory.measure_in_own_process",
        lambda case, library: Memory(
            storage=1.0,
            update_peak={"rsl_rl": 7.0, "rsl_tbptt": 2.0}[library],
            process_peak={"rsl_rl": 9.0, "rsl_tbptt": 3.0}[library],
        ),
    )
    assert run(*FEW, "--memory") == 0
    printed = re.sub(" +", " ", capsys.readouterr().out)
    assert "| rsl_rl | 9 MB | 7 MB | 1 MB |" in printed
    assert "| rsl_tbptt | 3 MB | 2 MB | 1 MB |" in printed


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_the_profile_counts_the_products(capsys):
    """By hand, for 4 mini-batches of one window, of actor and critic.

    4 steps forward and 3 backward, all weights once, and in the MLP's 4 layers one product forward
    and two backward.
    """
    assert run("--num-steps=4", *FEW, "--done-rate=0", "--pairs=1", "--profile") == 0
    products = 4 * 2 * (4 + 3 + 1 + 4 * 3)
    printed = re.sub(" +", " ", capsys.readouterr().out)
    assert re.search(rf"^\| matrix products \| \d+% \| {products} \|$", printed, re.M)
