"""Start the ranks of an algorithm; those of a whole training are in ``support.process``."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.distributed import destroy_process_group, init_process_group

TESTS = str(Path(__file__).parents[1])

PRELOADED = ["pytest", "support.helpers", "support.process", "torch.utils.tensorboard"]


class Share(NamedTuple):
    """Environments ``first`` to ``last`` - 1 of all ranks', and the option ``multi_gpu_cfg``."""

    first: int
    last: int
    cfg: dict[str, int]


def run_ranks(target: Callable[..., None], arguments: tuple[Any, ...], num_ranks: int) -> None:
    """Run ``target(rank, *arguments)`` to the end in processes that have imported everything.

    Raises:
        ProcessRaisedException: If one of them fails.
    """
    with forkserver():
        torch.multiprocessing.start_processes(
            _run_alone, (target, arguments), nprocs=num_ranks, start_method="forkserver"
        )


@contextmanager
def forkserver() -> Iterator[ForkServerContext]:
    """Start processes from one that has the tests on its path and their imports loaded."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([TESTS, *filter(None, sys.path)])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    try:
        yield context
    finally:
        os.environ["PYTHONPATH"] = before


def _run_alone(rank: int, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Run one rank; the target itself connects the ranks."""
    torch.set_num_threads(1)
    target(rank, *arguments)


@contextmanager
def group(rank: int, shares: Sequence[int], folder: str, **options: Any) -> Iterator[Share]:
    """Connect the ranks of :func:`run_ranks`; give this one its share of the environments.

    Args:
        rank: This rank.
        shares: Environments of each rank.
        folder: Where they meet.
        **options: Of ``init_process_group``.
    """
    store, num_ranks = f"file://{folder}/store", len(shares)
    init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks, **options)
    cfg = {"global_rank": rank, "local_rank": rank, "world_size": num_ranks}
    yield Share(sum(shares[:rank]), sum(shares[: rank + 1]), cfg)
    destroy_process_group()
