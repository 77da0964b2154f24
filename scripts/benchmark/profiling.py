"""Profile where the time of an update goes, and time the host's work."""

import time
from dataclasses import replace
from statistics import median

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from scripts.benchmark.case import (
    LIBRARIES,
    Case,
    Library,
    build,
    fill,
    num_warm_ups,
    products_in,
    seconds_of,
)

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
"""Cases of tiny networks by algorithm, with the optimiser steps of an update."""


def time_update(
    case: Case, num_updates: int = 5, library: Library = "rsl_tbptt"
) -> tuple[float, float]:
    """Return the seconds that an update takes, and those that the host is busy; medians."""
    algorithm = build(case, library)
    taken, busy = [], []
    before = num_warm_ups(case.device)
    for seed in range(before + num_updates):
        fill(algorithm, case, seed)
        start = time.process_time()
        with products_in(case.precision):
            taken.append(seconds_of(algorithm.update, case.device))
        busy.append(time.process_time() - start)
    return median(taken[before:]), median(busy[before:])


def profile_update(case: Case) -> profile:
    """Profile one of our updates, after those to warm up."""
    algorithm = build(case, "rsl_tbptt")
    before = num_warm_ups(case.device)
    on_gpu = [] if case.device == "cpu" else [ProfilerActivity.CUDA]
    with products_in(case.precision):
        for seed in range(before):
            fill(algorithm, case, seed)
            algorithm.update()
        fill(algorithm, case, before)
        with profile(activities=[ProfilerActivity.CPU, *on_gpu], acc_events=True) as profiler:
            seconds_of(algorithm.update, case.device)
    return profiler


def device_time(profiler: profile) -> float:
    """Return the seconds in which a GPU ran kernels or copies, several at once counted once."""
    events = [e for e in profiler.events() or () if e.device_type != DeviceType.CPU]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    busy, end = 0.0, 0.0
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return 1e-6 * busy


def host_times(num_updates: int, device: str = "cpu") -> dict[tuple[str, str], float]:
    """Return milliseconds per optimiser step by algorithm and library, the median.

    Tiny networks leave almost nothing but the host's work, for which a GPU waits.
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
