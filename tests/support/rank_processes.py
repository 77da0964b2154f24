"""Start the ranks of a training, by torchrun or like a launcher without an agent."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.distributed import destroy_process_group, init_process_group

TESTS = str(Path(__file__).parents[1])

PRELOADED = ["pytest", "support.helpers", "support.ranked_run", "torch.utils.tensorboard"]


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
    with _forkserver():
        torch.multiprocessing.start_processes(
            _run_alone, (target, arguments), nprocs=num_ranks, start_method="forkserver"
        )


def start_ranks(
    num_ranks: int, target: Callable[..., None], *arguments: Any, folder: Path
) -> list[BaseProcess]:
    """Start ``target(rank, num_ranks, *arguments)`` in such processes.

    They have the variables of srun's tasks in docs/howto/cluster.md: rank 0 holds the store, and
    no agent watches them. Their output goes to ``output_<rank>`` in ``folder``.
    """
    port = str(_free_port())
    processes = []
    with _forkserver() as context:
        for rank in range(num_ranks):
            started = (rank, num_ranks, port, str(folder), target, arguments)
            processes.append(context.Process(target=_run, args=started))
            processes[-1].start()
    return processes


@contextmanager
def _forkserver() -> Iterator[ForkServerContext]:
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


def _run(
    rank: int, num_ranks: int, port: str, folder: str, target: Callable[..., None], arguments: Any
) -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    with Path(folder, f"output_{rank}").open("w") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    target(rank, num_ranks, *arguments)


def join_ranks(processes: list[BaseProcess], seconds: float = 240.0) -> list[int | None]:
    """Wait for all; return their exit codes, None for one that hangs, which is killed."""
    for process in processes:
        process.join(seconds)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def torchrun(num_ranks: int, module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a module on several ranks of this machine, in a new session."""
    path = os.pathsep.join([TESTS, *filter(None, sys.path)])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*launcher, "--nproc_per_node", str(num_ranks), "-m", module, *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


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
