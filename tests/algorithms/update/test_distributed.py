"""R ranks with N/R environments each are one process with N; what fails on one changes none."""

import datetime
import inspect
import warnings
from typing import Any

import pytest
import torch
from rsl_rl.modules import normalization
from support.cases import CASES
from support.helpers import make_distillation, make_ppo, parameters_of, rnd_cfg, roll_out
from support.inside import assert_same, everything, saved, through_a_file
from support.rank_processes import group, run_ranks
from support.tolerances import EXACT_FLOAT64
from torch.utils._pytree import tree_leaves, tree_map

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO, optimizers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "all_reduce" not in inspect.getsource(normalization),
        reason="before rsl_rl 5.5 each rank normalises by its own observations",
    ),
]

SHARES, FAILING = (2, 4), 1
"""Environments of each rank, and the rank whose updates fail."""
TIMEOUT = datetime.timedelta(seconds=60)
"""Of an exchange: a hang then fails the test."""

# The whole rollout, or buffer, in one mini-batch: a random part would depend on the ranks.
WHOLE_BUFFER = {"buffer_share": 100.0}
DIVIDED: dict[str, dict[str, Any]] = {
    "distillation-student-lstm": {},
    "distillation-chunks": {"num_micro_batches": 2},
    "distillation-accumulating": {"grad_reduce_bucket_mb": 1e-4},
    "distillation-bce-heads": {},
    "distillation-average-falling-rate": {},
    "distillation-buffer-heads-average": WHOLE_BUFFER,
    "distillation-frames-buffer": WHOLE_BUFFER,
    "ppo-models-lstm": {},
    "ppo-models-shared": {},
    "ppo-per-mini-batch": {},
    "ppo-gating-mirror": {},
    "ppo-concurrent-window-mlp": {},
    "ppo-rnd-heads-window": {},
    "ppo-rnd-mlp": {},
    "ppo-final-observations": {},
}
"""Cases, and their options on ranks."""


class Divided:
    """An algorithm for all environments, whose rollouts also fill that of one rank."""

    def __init__(self, whole, part, envs):
        self.whole, self.part, self.envs = whole, part, envs

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def act(self, obs):
        actions = self.whole.act(obs)
        model = getattr(self.part, "actor", None) or self.part.student
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model.distribution, "sample", lambda: actions[self.envs])
            self.part.act(obs[self.envs])
        return actions

    def process_env_step(self, obs, rewards, dones, extras):
        self.whole.process_env_step(obs, rewards, dones, extras)
        own = tree_map(lambda values: values[self.envs], (rewards, dones, extras))
        self.part.process_env_step(obs[self.envs], *own)

    def compute_returns(self, obs):
        self.whole.compute_returns(obs)
        self.part.compute_returns(obs[self.envs])


def spoil(step, obs, *_):
    if step == 4:
        obs["policy"][1] = torch.nan


def divided(name, first, last, cfg):
    """Return a rank's numbers and those of one process, and how an update with NaN ends."""
    case, options = CASES[name], {"num_mini_batches": 1, **DIVIDED[name]}
    part = case.build(num_envs=last - first, multi_gpu_cfg=cfg, **options)
    part.broadcast_parameters()  # heads and RND were drawn by each rank
    whole = case.build(**options)
    whole.load(through_a_file(part.save()), None, strict=True)
    for seed in range(2):
        case.fill(Divided(whole, part, slice(first, last)), seed)
        whole.update()
        part.update()
    # Without counts: rsl_rl lets the normalisers of `whole` see the rollouts of all ranks.
    numbers = [floats(everything(each)) for each in (part, whole)]
    before = saved(part)
    case.fill(part, 2, on_step=spoil if cfg["global_rank"] == FAILING else None)
    return numbers, failed(part, saved, before)


def floats(tree):
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def failed(algorithm, state, before):
    """Return how an update ends, or its rollout, and assert that it has changed nothing."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="Time-outs are bootstrapped")
        try:
            if algorithm.storage.step == 0:
                roll_out(algorithm, 0)
            algorithm.update()
            end = "".join(str(warning.message) for warning in seen)
        except Exception as error:
            end = f"{type(error).__name__}: {error}"
    assert_same(state(algorithm), before)
    assert algorithm.storage.step == 0
    return end


def reinforced(poison, cfg, fails, **options):
    algorithm = make_ppo(TbpttPPO, 6, 3, num_mini_batches=2, multi_gpu_cfg=cfg, **options)
    roll_out(algorithm, cfg["global_rank"])
    if fails:
        poison(algorithm.storage)
    return algorithm


def nan_reward(storage):
    storage.rewards[2, 1] = storage.returns[2, 1] = torch.nan


def exploding_ratio(storage):
    storage.actions_log_prob[2, 1] = -1e4
    storage.advantages[2, 1] = -1.0


def too_few_environments(cfg, fails):
    options = {"gradient_length": 2, "num_micro_batches": 3, "multi_gpu_cfg": cfg}
    return make_distillation(TbpttDistillation, 6, 2 if fails else 4, **options)


def out_of_memory(cfg, fails):
    """Distil with a loss that runs out of memory in one process."""
    algorithm = make_distillation(
        TbpttDistillation, 6, 6, gradient_length=2, num_mini_batches=1, multi_gpu_cfg=cfg
    )
    loss, calls = algorithm.objective.loss, []

    def breaking(*args):
        calls.append(args)
        if fails and len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(*args)

    algorithm.objective.loss = breaking
    roll_out(algorithm, cfg["global_rank"])
    return algorithm


FAILS = {
    "gradient": lambda *each: reinforced(exploding_ratio, *each),
    "raised": lambda *each: reinforced(nan_reward, *each, non_finite="raise"),
    "too few": too_few_environments,
    "memory": out_of_memory,  # last, since it ends the exchanges
}


def alone(rank):
    """Train in a process that shares a group with others, but no settings of several processes."""
    case = CASES["ppo-rnd-heads-window"]
    # Without normalisers, which rsl_rl lets every process of a group share.
    algorithm = case.build(actor_kwargs={}, rnd_cfg=rnd_cfg())
    case.fill(algorithm, rank)
    algorithm.update()
    return parameters_of(algorithm)


def run_rank(rank, folder):
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    optimizers._MAX_ROWS["cpu"] = 8  # several of them, and each rank alone would take other ones
    expected = alone(rank)
    with group(rank, SHARES, folder, timeout=TIMEOUT) as (first, last, cfg):
        assert torch.equal(alone(rank), expected)
        results = {name: divided(name, first, last, cfg) for name in DIVIDED}
        ends = {}
        for name, make in FAILS.items():
            algorithm = make(cfg, rank == FAILING)
            ends[name] = failed(algorithm, parameters_of, parameters_of(algorithm))
        torch.save((results, ends), f"{folder}/rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(run_rank, (str(folder),), len(SHARES))
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", DIVIDED)
def test_two_ranks_are_one_and_an_update_with_nan_on_one_is_undone_on_both(ranks, name):
    for results, _ in ranks:
        (part, whole), end = results[name]
        torch.testing.assert_close(part, whole, **EXACT_FLOAT64)
        assert "observation group 'policy' of environments [1]" in end
        assert f"on rank {FAILING}" in end


@pytest.mark.parametrize(
    ("name", "start", "source"),
    [
        ("gradient", "An update met NaN or inf", "the gradients of environments [1]"),
        ("raised", "ValueError", "rewards of environments [1], first at step 2"),
        ("too few", "ValueError", "num_micro_batches is 3, expected at most num_envs, 2"),
    ],
)
def test_all_ranks_name_the_same_source(ranks, name, start, source):
    end, other = (ends[name] for _, ends in ranks)
    assert end == other
    assert end.startswith(start)
    assert source in end
    assert name == "too few" or f"on rank {FAILING}" in end


def test_a_process_without_memory_gives_advice_and_ends_the_other_one(ranks):
    other, end = (ends["memory"] for _, ends in ranks)
    assert end.startswith("OutOfMemoryError: The update ran out of memory with 1 micro-batches")
    assert "set num_micro_batches to 2" in end
    assert other.startswith("RuntimeError: ")
