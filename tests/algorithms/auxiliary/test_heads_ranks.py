"""Auxiliary heads of several processes start equal and get the gradient of one process."""

import pytest
import torch
from support.auxiliary_reference import (
    HEADS,
    Past,
    by_ppo,
    distilling,
    gradient_of_update,
    modules_of,
    reference_of_distillation,
    reference_of_ppo,
    stored,
    vector,
)
from support.inside import extension
from support.rank_processes import run_ranks
from support.tolerances import EXACT_FLOAT64
from torch import distributed

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("float64")]

T, SHARES = 7, (2, 3)
N = sum(SHARES)


def fill(algorithm, first, last):
    """Put environments [first, last) of one global rollout into a storage, states included."""
    generator, storage = torch.Generator().manual_seed(3), algorithm.storage
    by_name = vars(storage)
    recorded = ("actions", "actions_log_prob", "values", "returns", "advantages")
    values = [by_name[name] for name in recorded if by_name.get(name) is not None]
    for value in [*storage.observations.values(), *values]:
        whole = torch.randn(T, N, *value.shape[2:], generator=generator)
        value.copy_(whole[:, first:last])
    storage.distribution_params = tuple(torch.ones(T, last - first, 2) for _ in range(2))
    dones = torch.rand(T, N, 1, generator=generator) < 0.3
    storage.dones.copy_(dones[:, first:last])
    pair = tuple(torch.randn(1, N, 6, generator=generator)[:, first:last] for _ in range(2))
    return tuple(tensor.contiguous() for tensor in pair)


def filled_distillation(first, last, cfg=None):
    heads = {**HEADS, "latent": {"target": "teacher:mlp.0"}}
    algorithm = distilling(
        T, last - first, auxiliary=heads, multi_gpu_cfg=cfg, batch_teacher_labels=True
    )
    algorithm.experience.start_state = fill(algorithm, first, last)
    return algorithm


def filled_ppo(first, last, cfg=None):
    algorithm = by_ppo(T, last - first, auxiliary=HEADS, multi_gpu_cfg=cfg)
    state = fill(algorithm, first, last)
    algorithm.states = [(state, state) for _ in algorithm.batches.state_steps]
    return algorithm


def draw_heads(algorithm, seed):
    """Draw the heads again, because their parameters depend on the number of environments."""
    torch.manual_seed(seed)
    for parameter in extension(algorithm, "auxiliary").parameters:
        parameter.data.normal_(std=0.3)


def run_rank(rank, folder):
    torch.set_default_dtype(torch.float64)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(SHARES)
    )
    first, last = sum(SHARES[:rank]), sum(SHARES[: rank + 1])
    cfg = {"global_rank": rank, "local_rank": rank, "world_size": len(SHARES)}
    gradients = []
    for make in (filled_distillation, filled_ppo):
        algorithm = make(first, last, cfg)
        draw_heads(algorithm, rank)
        algorithm.broadcast_parameters()
        gradients += [vector(*modules_of(algorithm)), gradient_of_update(algorithm)]
    torch.save(gradients, f"{folder}/rank{rank}.pt")
    distributed.destroy_process_group()


def test_two_ranks_get_the_gradient_of_one_process(tmp_path):
    run_ranks(run_rank, (str(tmp_path),), len(SHARES))
    results = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(len(SHARES))]
    distillation, ppo = filled_distillation(0, N), filled_ppo(0, N)
    expected = []
    for algorithm in (distillation, ppo):
        draw_heads(algorithm, 0)
        expected.append(vector(*modules_of(algorithm)))
        if algorithm is distillation:
            expected.append(reference_of_distillation(algorithm, [stored(algorithm)]))
        else:
            storage = algorithm.storage
            dones = storage.dones.squeeze(-1).bool()
            past = Past(storage.observations, dones, algorithm.states[0])
            expected.append(reference_of_ppo(algorithm, past))
    for by_rank in results:
        for got, want in zip(by_rank, expected, strict=True):
            torch.testing.assert_close(got, want, **EXACT_FLOAT64)
