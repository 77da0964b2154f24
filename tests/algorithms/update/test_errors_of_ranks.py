"""After an error in one process, all end the same way, unchanged, with the same reason."""

import datetime
import warnings

import pytest
import torch
from support.helpers import (
    STATE_DIM,
    make_distillation,
    make_ppo,
    parameters_of,
    ppo_parameters_of,
    roll_out,
    roll_out_ppo,
)
from support.rank_processes import run_ranks
from torch import distributed

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.slow

WORLD_SIZE, FAILING = 2, 1
SECONDS = 60.0
"""Timeout of an exchange: a hang then fails the test."""


def distilled(cfg, failing):
    """Distil with a loss that raises in one process."""
    algorithm = make_distillation(TbpttDistillation, 6, 3, gradient_length=2, multi_gpu_cfg=cfg)
    loss, calls = algorithm.loss, []

    def breaking(*args):
        calls.append(args)
        if failing and len(calls) == 2:
            raise ArithmeticError("no memory left")
        return loss(*args)

    algorithm.loss = breaking
    roll_out(algorithm, cfg["global_rank"])
    return algorithm, parameters_of


def reinforced(cfg, failing, poison, **options):
    algorithm = make_ppo(TbpttPPO, 6, 3, num_mini_batches=2, multi_gpu_cfg=cfg, **options)
    roll_out_ppo(algorithm, cfg["global_rank"])
    if failing:
        poison(algorithm)
    return algorithm, ppo_parameters_of


def nan_reward(algorithm):
    algorithm.storage.rewards[2, 1] = algorithm.storage.returns[2, 1] = torch.nan


def exploding_ratio(algorithm):
    algorithm.storage.actions_log_prob[2, 1] = -1e4
    algorithm.storage.advantages[2, 1] = -1.0


def fail(*args, **kwargs):
    raise ArithmeticError("no memory left")


def failing_loss(algorithm):
    algorithm.gradient.policy_loss = fail


def failing_rnd(algorithm):
    algorithm._rnd._embeddings = fail


RND = {
    "num_states": STATE_DIM,
    "obs_groups": {"rnd_state": ["state"]},
    "num_outputs": 3,
    "predictor_hidden_dims": [8],
    "target_hidden_dims": [8],
}


def no_memory(algorithm):
    """Make the allocations of the first update fail."""

    def failing(tensor, *shape, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    torch.Tensor.new_empty, kept = failing, torch.Tensor.new_empty
    try:
        return TbpttDistillation.update(algorithm)
    finally:
        torch.Tensor.new_empty = kept


def starting(cfg, failing):
    """Begin to distil with a replay buffer that does not fit in one process."""
    options = {"gradient_length": 2, "buffer_rollouts": 2, "multi_gpu_cfg": cfg}
    algorithm = make_distillation(TbpttDistillation, 6, 3, **options)
    roll_out(algorithm, 0)
    if failing:
        algorithm.update = lambda: no_memory(algorithm)
    return algorithm, parameters_of


def lost(name):
    """Return a function that removes the last step of a stored tensor, so that it is too short."""

    def poison(algorithm):
        setattr(algorithm.storage, name, getattr(algorithm.storage, name)[:-1])

    return poison


def no_distribution(algorithm):
    algorithm.storage.distribution_params = None


EPISODES = {"loss_reduction": "episode_mean"}
PER_MINI_BATCH = {"normalize_advantage_per_mini_batch": True}
CASES = {
    "loss": distilled,
    "reward": lambda cfg, failing: reinforced(cfg, failing, nan_reward, **EPISODES),
    "gradient": lambda cfg, failing: reinforced(cfg, failing, exploding_ratio, **EPISODES),
    "raised": lambda cfg, failing: reinforced(cfg, failing, nan_reward, non_finite="raise"),
    "policy_loss": lambda cfg, failing: reinforced(cfg, failing, failing_loss, **EPISODES),
    "rnd": lambda cfg, failing: reinforced(cfg, failing, failing_rnd, rnd_cfg=RND),
    "start": starting,
    "advantages": lambda cfg, failing: reinforced(
        cfg, failing, lost("advantages"), **PER_MINI_BATCH
    ),
    "episodes": lambda cfg, failing: reinforced(cfg, failing, lost("dones"), **EPISODES),
    "rollout": lambda cfg, failing: reinforced(cfg, failing, no_distribution, **PER_MINI_BATCH),
}


def run_rank(rank, folder):
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    warnings.filterwarnings("ignore", message="Time-outs are bootstrapped")
    cfg = {"global_rank": rank, "local_rank": rank, "world_size": WORLD_SIZE}
    results = {}
    for name, case in CASES.items():
        algorithm, read = case(cfg, rank == FAILING)
        before = read(algorithm)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                algorithm.update()
                end = "".join(str(warning.message) for warning in seen)
            except Exception as error:
                end = f"{type(error).__name__}: {error}"
        results[name] = (end, torch.equal(read(algorithm), before), algorithm.storage.step)
    torch.save(results, f"{folder}/rank{rank}.pt")
    distributed.destroy_process_group()


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


@pytest.mark.parametrize("case", ["loss", "policy_loss", "rnd"])
def test_an_error_of_one_process_is_raised_in_all(ends, case):
    assert ends[FAILING][case][0] == "ArithmeticError: no memory left"
    other = ends[1 - FAILING][case][0]
    assert other.startswith(f"RuntimeError: Rank {FAILING} could not compute its part")
    assert "ArithmeticError: no memory left" in other


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("advantages", "IndexError: "),
        ("episodes", "IndexError: "),
        ("rollout", "AssertionError: "),
    ],
)
def test_a_failure_before_an_exchange_leaves_no_process_waiting(ends, case, error):
    assert ends[FAILING][case][0].startswith(error)
    other = ends[1 - FAILING][case][0]
    assert other.startswith(f"RuntimeError: Rank {FAILING} could not")
    assert error in other


def test_if_one_process_has_no_memory_all_retry_and_end(ends):
    for results in ends:
        end = results["start"][0]
        assert end.startswith("OutOfMemoryError: The update ran out of memory with ")
        assert "one sequence at a time" in end
