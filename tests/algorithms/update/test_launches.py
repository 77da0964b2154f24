"""What an update launches on a GPU with the Triton engine, counted in Triton's interpreter."""

from dataclasses import replace

import pytest
from support.helpers import MEMORIES, make_distillation, make_ppo, roll_out, train
from support.triton_on_cpu import triton_engine_on_cpu

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from scripts.benchmark.launches import OUTSIDE, Launches, count
from scripts.benchmark.profiling import CASES

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

N = 4
TWO_LAYERS = {"rnn_num_layers": 2}


def distillation(num_steps, cell):
    """Return an algorithm of two optimiser steps, and the layers of its models."""
    algorithm = make_distillation(
        TbpttDistillation,
        num_steps,
        N,
        cell,
        student_kwargs=TWO_LAYERS,
        gradient_length=num_steps,
        num_learning_epochs=2,
        scan_engine="triton",
    )
    return algorithm, 2


def ppo(num_steps, cell):
    """Return an algorithm of four optimiser steps, and the layers of its models."""
    options = {"num_mini_batches": 2, "num_learning_epochs": 2, "scan_engine": "triton"}
    algorithm = make_ppo(TbpttPPO, num_steps, N, cell, cell, TWO_LAYERS, **options)
    return algorithm, 2 + 1


@pytest.mark.parametrize("cell", MEMORIES)
@pytest.mark.parametrize(
    ("make", "num_optimizer_steps", "most_launches"), [(distillation, 2, 122), (ppo, 4, 152)]
)
def test_a_step_is_a_kernel_for_each_layer_and_pass(make, num_optimizer_steps, most_launches, cell):
    """Nothing else in an update depends on the number of steps of a rollout, and that is little."""

    def launches_of_update(num_steps):
        algorithm, num_layers = make(num_steps, cell)
        with triton_engine_on_cpu():
            train(algorithm, 0)  # the first update makes the optimiser's state
            roll_out(algorithm, 1)
            with Launches() as launches:
                algorithm.update()
        return launches.names, num_layers

    short, _ = launches_of_update(3)
    assert len(short) / num_optimizer_steps <= most_launches
    long, num_layers = launches_of_update(4)
    more = {name: long.count(name) - short.count(name) for name in {*short, *long}}
    of_a_step = [f"{cell}_forward_with_product", f"{cell}_backward_with_product"]
    expected = dict.fromkeys(of_a_step, num_optimizer_steps * num_layers)
    assert {name: count for name, count in more.items() if count} == expected


@pytest.mark.parametrize(
    ("name", "in_step", "outside"), [("ppo", 219, 73), ("distillation", 112, 101)]
)
def test_a_step_of_the_benchmarks_networks_launches_no_more_than_the_study_says(
    name, in_step, outside
):
    """Of 24 steps, with three hidden layers and normalisers: see docs/studies/performance.md."""
    case, _ = CASES[name]
    case = replace(case, gradient_length=24, num_learning_epochs=1)
    found = count(case, num_mini_batches=2)
    assert found["a step"][0] <= in_step, found
    assert found[OUTSIDE][0] <= outside, found
