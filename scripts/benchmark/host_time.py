"""Time of an optimiser step of tiny networks: almost nothing but the host's work.

A GPU waits for the host if its own work takes less time.
"""

from dataclasses import replace

import torch

from scripts.benchmark.case import LIBRARIES, Case
from scripts.benchmark.profiling import time_update

_TINY = {role: {"hidden_dims": [8, 8, 8]} for role in ("actor", "critic", "student", "teacher")}
_ROBOTS = Case(num_envs=16, num_steps=24, rnn_hidden_dim=8, models=_TINY)
_DEFAULTS = {"num_learning_epochs": 2, "num_mini_batches": 8, "buffer_rollouts": 50}
CASES = {
    "distillation": (
        replace(_ROBOTS, algorithm="distillation", gradient_length=15, options=_DEFAULTS),
        2 * 8 * 2,
    ),
    "ppo": (replace(_ROBOTS, algorithm="ppo", gradient_length=24, num_learning_epochs=5), 5 * 4),
}
"""Cases by algorithm, with the optimiser steps of an update."""


def host_times(num_updates: int, device: str = "cpu") -> dict[tuple[str, str], float]:
    """Return milliseconds per optimiser step by algorithm and library, the median.

    On a CPU they are CPU time, on a GPU the update's time: the host waits for the GPU at its end.

    rsl_rl's distillation is left out: it takes one step per window, without mini-batches.
    """
    torch.set_num_threads(1)
    times = {}
    for name, (case, num_steps) in CASES.items():
        for library in LIBRARIES if name == "ppo" else LIBRARIES[:1]:
            taken, busy = time_update(replace(case, device=device), num_updates, library)
            times[name, library] = 1e3 * (busy if device == "cpu" else taken) / num_steps
    return times
