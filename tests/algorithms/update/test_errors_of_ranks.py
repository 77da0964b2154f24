"""NaN on one rank skips the update on all; a rank that fails ends the others, all unchanged."""

import datetime
import warnings

import pytest
import torch
from support.helpers import (
    make_distillation,
    make_ppo,
    parameters_of,
    roll_out,
)
from support.rank_processes import group, run_ranks

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.slow

WORLD_SIZE, FAILING = 2, 1
SECONDS = 60.0
"""Timeout of an exchange: a hang then fails the test."""


def distilled(cfg, failing):
    """Distil with a loss that runs out of memory in one process."""
    algorithm = make_distillation(
        TbpttDistillation, 6, 6, gradient_length=2, num_mini_batches=1, multi_gpu_cfg=cfg
    )
    loss, calls = algorithm._student.loss, []

    def breaking(*args):
        calls.append(args)
        if failing and len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(*args)

    algorithm._student.loss = breaking
    roll_out(algorithm, cfg["global_rank"])
    return algorithm


def reinforced(cfg, failing, poison, **options):
    algorithm = make_ppo(TbpttPPO, 6, 3, num_mini_batches=2, multi_gpu_cfg=cfg, **options)
    roll_out(algorithm, cfg["global_rank"])
    if failing:
        poison(algorithm)
    return algorithm


def nan_reward(algorithm):
    algorithm.storage.rewards[2, 1] = algorithm.storage.returns[2, 1] = torch.nan


def exploding_ratio(algorithm):
    algorithm.storage.actions_log_prob[2, 1] = -1e4
    algorithm.storage.advantages[2, 1] = -1.0


EPISODES = {"loss_reduction": "episode_mean"}
CASES = {
    "reward": lambda cfg, failing: reinforced(cfg, failing, nan_reward, **EPISODES),
    "gradient": lambda cfg, failing: reinforced(cfg, failing, exploding_ratio, **EPISODES),
    "raised": lambda cfg, failing: reinforced(cfg, failing, nan_reward, non_finite="raise"),
    "memory": distilled,  # last, since it ends the exchanges
}


def run_rank(rank, folder):
    warnings.filterwarnings("ignore", message="Time-outs are bootstrapped")
    results = {}
    with group(rank, (0, 0), folder, timeout=datetime.timedelta(seconds=SECONDS)) as share:
        for name, case in CASES.items():
            algorithm = case(share.cfg, rank == FAILING)
            before = parameters_of(algorithm)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                try:
                    algorithm.update()
                    end = "".join(str(warning.message) for warning in seen)
                except Exception as error:
                    end = f"{type(error).__name__}: {error}"
            unchanged = torch.equal(parameters_of(algorithm), before)
            results[name] = (end, unchanged, algorithm.storage.step)
        torch.save(results, f"{folder}/rank{rank}.pt")


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(run_rank, (str(folder),), WORLD_SIZE)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(WORLD_SIZE)]


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_changed_in_any_process(ends, case):
    for results in ends:
        _, unchanged, step = results[case]
        assert unchanged
        assert step == 0


@pytest.mark.parametrize(
    ("case", "source"),
    [
        ("reward", r"rewards of environments [1], first at step 2"),
        ("gradient", r"the gradients of environments [1]"),
        ("raised", r"rewards of environments [1], first at step 2"),
    ],
)
def test_all_processes_name_the_same_source(ends, case, source):
    assert len({results[case][0] for results in ends}) == 1
    end = ends[0][case][0]
    assert source in end
    assert f"on rank {FAILING}" in end
    assert end.startswith("ValueError" if case == "raised" else "An update met NaN or inf")


def test_a_process_without_memory_gives_advice_and_ends_the_other_one(ends):
    end = ends[FAILING]["memory"][0]
    assert end.startswith("OutOfMemoryError: The update ran out of memory with 1 micro-batches")
    assert "set num_micro_batches to 2" in end
    assert ends[1 - FAILING]["memory"][0].startswith("RuntimeError: ")
