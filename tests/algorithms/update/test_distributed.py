"""R processes with N/R environments each give the same update as one process with N."""

import pytest
import torch
from support.auxiliary_reference import vector
from support.cases import HEADS
from support.helpers import (
    make_distillation,
    make_obs,
    make_ppo,
    parameters_of,
    rnd_cfg,
)
from support.inside import assert_same, networks_of_heads
from support.rank_processes import group, run_ranks
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO, optimizers

pytestmark = pytest.mark.slow

NUM_ENVS, NUM_STEPS = 6, 7


def fill_storage(storage, first, last):
    """Put environments [first, last) of one global rollout into the storage."""
    generator = torch.Generator().manual_seed(3)
    for value in storage.observations.values():
        whole = torch.randn(NUM_STEPS, NUM_ENVS, *value.shape[2:], generator=generator)
        value.copy_(whole[:, first:last])
    labels = torch.randn(NUM_STEPS, NUM_ENVS, 2, generator=generator)
    dones = torch.rand(NUM_STEPS, NUM_ENVS, 1, generator=generator) < 0.3
    storage.privileged_actions.copy_(labels[:, first:last])
    storage.dones.copy_(dones[:, first:last])


def updated_parameters(first, last, multi_gpu_cfg=None, **options):
    algorithm = make_distillation(
        TbpttDistillation,
        NUM_STEPS,
        last - first,
        gradient_length=3,
        multi_gpu_cfg=multi_gpu_cfg,
        **options,
    )
    algorithm.student(algorithm.storage.observations[0])  # which has a state after a rollout
    algorithm.student.reset(torch.ones(last - first))
    heads = networks_of_heads(algorithm)
    draw(algorithm, heads, multi_gpu_cfg)
    for _ in range(2):
        fill_storage(algorithm.storage, first, last)
        algorithm.update()
    return torch.cat((parameters_of(algorithm), vector(*heads)))


def draw(algorithm, modules, multi_gpu_cfg):
    """Draw networks whose first weights depend on the number of environments; rank 0's count."""
    rank = (multi_gpu_cfg or {"global_rank": 0})["global_rank"]
    generator = torch.Generator().manual_seed(5 + rank)
    with torch.no_grad():
        for parameter in (p for module in modules for p in module.parameters()):
            parameter.normal_(std=0.3, generator=generator)
    if multi_gpu_cfg:
        algorithm.broadcast_parameters()


SGD = {"optimizer": "sgd", "learning_rate": 0.1}  # Adam enlarges rounding of small gradients

OPTIONS = (
    {},
    {"num_micro_batches": 2},
    {"grad_reduce_bucket_mb": 1e-4, "update_length": 5},
    {"student_kwargs": {"obs_normalization": True}},
    {"weight_average": True},
    {"auxiliary": HEADS, **SGD},
    {"student": "cnn-gru"},
    # The whole buffer in one mini-batch, because a random part would depend on the processes.
    {"buffer_rollouts": 2, "buffer_share": 100.0, "num_learning_epochs": 2},
)


PPO_OPTIONS = (
    {},
    {"minibatch_unit": "window", "loss_reduction": "episode_mean"},
    {"normalize_advantage_per_mini_batch": True},
    {"auxiliary": HEADS, **SGD},
)


def fill_ppo_rollout(algorithm, first, last):
    """Put environments [first, last) of one global rollout into a PPO, its states included.

    The rewards of the environments differ in size, and so do those of the ranks.
    """
    storage, generator = algorithm.storage, torch.Generator().manual_seed(4)
    storage.distribution_params = tuple(torch.ones(NUM_STEPS, last - first, 2) for _ in range(2))
    targets = [*storage.observations.values(), storage.actions, storage.actions_log_prob]
    for target in [*targets, storage.rewards, storage.values]:
        shape = (NUM_STEPS, NUM_ENVS, target.shape[-1])
        target.copy_(torch.randn(shape, generator=generator)[:, first:last])
    storage.rewards.mul_(torch.arange(first, last).unsqueeze(1) - 1.0)
    dones = torch.rand(NUM_STEPS, NUM_ENVS, 1, generator=generator) < 0.3
    storage.dones.copy_(dones[:, first:last])
    with torch.inference_mode():
        algorithm.compute_returns(make_obs(NUM_ENVS, generator)[first:last])

    def state():
        pair = (torch.randn(1, NUM_ENVS, 6, generator=generator) for _ in range(2))
        return tuple(tensor[:, first:last] for tensor in pair)

    algorithm.states = [(state(), state()) for _ in algorithm.batches.state_steps]


def updated_ppo_parameters(first, last, multi_gpu_cfg=None, **options):
    """Update a PPO with RND on environments [first, last) of one global rollout."""
    algorithm = make_ppo(
        TbpttPPO,
        NUM_STEPS,
        last - first,
        num_mini_batches=1,
        num_learning_epochs=3,
        gradient_length=3,
        rnd_cfg=rnd_cfg(),
        multi_gpu_cfg=multi_gpu_cfg,
        **options,
    )
    heads = networks_of_heads(algorithm)
    draw(algorithm, [algorithm.rnd, *heads], multi_gpu_cfg)
    fill_ppo_rollout(algorithm, first, last)
    rnd_loss = algorithm.update()["rnd"]
    own = vector(algorithm.rnd.predictor, *heads)
    return torch.cat((parameters_of(algorithm), own, torch.tensor([rnd_loss])))


def run_rank(rank, shares, folder):
    optimizers._MAX_ROWS["cpu"] = 8  # several of them, and each rank alone would take other ones
    with group(rank, shares, folder) as (first, last, cfg):
        results = [updated_parameters(first, last, cfg, **options) for options in OPTIONS]
        results += [updated_ppo_parameters(first, last, cfg, **options) for options in PPO_OPTIONS]
        torch.save(results, f"{folder}/rank{rank}.pt")
        torch.save(results_alone(first, last), f"{folder}/alone{rank}.pt")


def results_alone(first, last):
    """Update on environments [first, last) without any multi-process settings."""
    return updated_parameters(first, last), *(
        updated_ppo_parameters(first, last, **options) for options in PPO_OPTIONS
    )


@pytest.fixture(scope="module", params=[[3, 3], [2, 4]], ids=str)
def ranks(request, tmp_path_factory):
    """Return the environments of each rank, and the folder with what the ranks left."""
    shares, folder = request.param, tmp_path_factory.mktemp("ranks")
    run_ranks(run_rank, (shares, str(folder)), len(shares))
    return shares, folder


def test_ranks_leave_the_parameters_of_one_process(ranks):
    shares, folder = ranks
    results = [torch.load(folder / f"rank{rank}.pt") for rank in range(len(shares))]
    expected = [updated_parameters(0, NUM_ENVS, **options) for options in OPTIONS]
    expected += [updated_ppo_parameters(0, NUM_ENVS, **options) for options in PPO_OPTIONS]
    for want, *by_rank in zip(expected, *results, strict=True):
        for parameters in by_rank:
            torch.testing.assert_close(parameters, want, **PARITY_FLOAT32)


def test_runs_that_only_share_a_process_group_stay_separate(ranks):
    shares, folder = ranks
    for rank in range(len(shares)):
        expected = results_alone(sum(shares[:rank]), sum(shares[: rank + 1]))
        assert_same(torch.load(folder / f"alone{rank}.pt"), expected)
