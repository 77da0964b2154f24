"""Several ranks on a CPU for rsl_rl's runners, which know GPUs and NCCL only."""

from __future__ import annotations

import os
from typing import Any

from torch import distributed


def world_size() -> int:
    """Return how many ranks torchrun, or a script like it, has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join_on_cpu(runner: Any) -> None:
    """Do by gloo what ``_configure_multi_gpu`` of rsl_rl 5.0.1 to 5.5 does by NCCL.

    Args:
        runner: One of its runners, on the device "cpu", before it builds its algorithm. A second
            one in the same process joins the ranks of the first.
    """
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    runner.is_distributed, runner.gpu_world_size = True, world_size()
    runner.gpu_global_rank, runner.gpu_local_rank = rank, local_rank
    runner.cfg["multi_gpu"] = {
        "global_rank": rank,
        "local_rank": local_rank,
        "world_size": runner.gpu_world_size,
    }
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", rank=rank, world_size=runner.gpu_world_size)
