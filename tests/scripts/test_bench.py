"""`python -m scripts.benchmark update` times only equal computations, in turn."""

import re
import sys
from dataclasses import replace

import pytest
import torch

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.core.scan.layers import tf32_in_layers, tf32_in_products
from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import case as bench
from scripts.benchmark import memory, suite
from scripts.benchmark.case import (
    LIBRARIES,
    Case,
    alternate,
    build,
    check_equal,
    fill,
    spread,
)

TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)
FEW = ("--num-envs=8", "--num-steps=4", "--gradient-length=4", "--rnn-hidden-dim=8", "--pairs=1")


def run(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["benchmark", "update", *options])
    args = benchmark.parse_args()
    args.measure(args)


def test_one_report_shows_time_and_memory(monkeypatch, capsys):
    for module in (suite, memory):
        monkeypatch.setattr(module, "in_own_process", lambda call, *arguments: call(*arguments))
    run(monkeypatch, *FEW, "--num-mini-batches=2", "--rnn-num-layers=2", "--memory")
    row = r"^\| PPO, 2 layers of LSTM-8, float32, N=8, T=4, K=4, done rate 0\.05 \|"
    printed = capsys.readouterr().out
    assert f"torch {torch.__version__.split('+')[0]}" in printed
    assert re.search(
        rf"{row}( [\d.]+ ms \|){{2}} [\d.]+ \| [\d.]+ to [\d.]+ \| - \|$", printed, re.M
    )
    assert re.search(rf"{row}( \d+ MB \|){{2}} [\d.]+ \| - \|$", printed, re.M)
    assert "Targets" not in printed


@pytest.mark.parametrize(
    ("algorithm", "other"), [("distillation", TbpttDistillation), ("ppo", TbpttPPO)]
)
def test_different_computations_are_not_compared(algorithm, other, monkeypatch, capsys):
    def half_a_percent_more(*args, learning_rate=1e-3, **options):
        return other(*args, learning_rate=1.005 * learning_rate, **options)

    monkeypatch.setitem(bench.CLASSES[algorithm], "rsl_tbptt", half_a_percent_more)
    bench._difference.cache_clear()
    wrong = r"parameters' change by one update differs by [45]\.\de-03 .* are not compared"
    with pytest.raises(ValueError, match=wrong):
        run(monkeypatch, *FEW, f"--algorithm={algorithm}")
    bench._difference.cache_clear()
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--device=cuda:99", "device"),
        ("--num-steps=0", "num_steps"),
        ("--done-rate=5", "done_rate"),
        ("--num-envs=10", "num_envs"),
        ("--num-envs=4", "num_envs"),
        ("--pairs=0", "pairs"),
    ],
)
def test_wrong_options_are_named(monkeypatch, option, name):
    with pytest.raises(ValueError, match=rf"^{name} is .*, expected"):
        run(monkeypatch, *FEW, option)


def test_rsl_rl_of_the_policy_era_is_refused(monkeypatch):
    monkeypatch.setattr(bench, "rsl_rl_era", lambda: "policy")
    with pytest.raises(ImportError, match=r"expected 5\.0\.1 to 5\.5: "):
        run(monkeypatch, *FEW)


def test_the_ratio_is_the_median_of_the_pairs():
    assert spread([1.0, 2.0, 4.0], [2.0, 20.0, 12.0]) == (2.0, 3.0, 10.0)


def test_libraries_take_turns_after_one_update_to_warm_up(monkeypatch):
    turns = []

    class Turns:
        def __init__(self, library):
            self.update = lambda: turns.append(library)

    monkeypatch.setattr(bench, "build", lambda case, library: Turns(library))
    monkeypatch.setattr(bench, "fill", lambda algorithm, case, seed: None)
    times = alternate([(library, TINY) for library in LIBRARIES], num_updates=2)
    assert turns == [*LIBRARIES] * 3
    assert [len(seconds) for seconds in times] == [2, 2]


@pytest.mark.parametrize(("num_mini_batches", "few"), [(4, 32), (3, 30), (20, 40), (256, 512)])
def test_equality_is_checked_over_all_steps_and_with_all_environments(
    monkeypatch, num_mini_batches, few
):
    """Few environments fill the mini-batches."""
    checked = []
    monkeypatch.setattr(bench, "_difference", lambda case: checked.append(case) or 0.0)
    check_equal(Case(num_envs=15360, num_steps=128, num_mini_batches=num_mini_batches))
    sizes = [(c.num_envs, c.num_steps, c.gradient_length) for c in checked]
    assert sizes == [(few, 128, 128), (15360, 4, 4)]


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
@pytest.mark.parametrize("algorithm", ["distillation", "ppo"])
def test_the_check_passes(algorithm, rnn_type):
    check_equal(replace(TINY, algorithm=algorithm, rnn_type=rnn_type, done_rate=0.2))


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_bfloat16_continues_after_an_update(rnn_type):
    case = replace(TINY, use_mixed_precision=True, rnn_type=rnn_type)
    alternate([("rsl_rl", case)], num_updates=2)


@pytest.mark.filterwarnings("ignore:.*never backpropagated")
def test_an_unfinished_window_limits_the_check_to_one_epoch(monkeypatch):
    """rsl_rl's second epoch would continue it. Options of our algorithm alone are left out."""
    checked = []
    monkeypatch.setattr(bench, "_difference", lambda case: checked.append(case) or 0.0)
    case = replace(TINY, gradient_length=4, num_learning_epochs=2, tf32=True)
    check_equal(replace(case, options={"buffer_rollouts": 50}))
    assert [(c.num_steps, c.num_learning_epochs) for c in checked] == [(6, 1), (4, 2)]
    assert not any(c.options or c.tf32 for c in checked)
    monkeypatch.undo()
    check_equal(case)


@pytest.mark.parametrize("precision", ["float32", "TF32"])
def test_all_products_of_a_gpu_are_in_the_precision_of_the_case(precision):
    """Afterwards they have torch's default again. No GPU is needed to read the setting."""
    with bench.products_in(precision):
        assert tf32_in_products() == (precision == "TF32")
        assert tf32_in_layers()
    assert not tf32_in_products()


def test_a_cpu_has_no_tf32():
    case = replace(TINY, tf32=True)
    assert case.precision == "float32"
    object.__setattr__(case, "device", "cuda:0")
    assert case.precision == "TF32"
    assert replace(TINY, use_mixed_precision=True, tf32=True).precision == "bfloat16"


def test_more_epochs_change_more():
    case = Case(num_envs=32, num_steps=2, num_mini_batches=16, rnn_hidden_dim=8)
    steps = []
    for num_epochs in (1, 3):
        algorithm = build(replace(case, num_learning_epochs=num_epochs), "rsl_rl")
        fill(algorithm, case, seed=0)
        algorithm.optimizer.register_step_post_hook(lambda *_, n=num_epochs: steps.append(n))
        algorithm.update()
    assert (steps.count(1), steps.count(3)) == (16, 48)
