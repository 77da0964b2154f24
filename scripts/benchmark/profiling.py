"""Profile where the time of one of our updates goes."""

import time
from collections import Counter
from statistics import median

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from scripts.benchmark.case import (
    Case,
    Library,
    build,
    fill,
    num_warm_ups,
    products_in,
    seconds_of,
)

KINDS = {
    "matrix products": "mm addmm addmm_ bmm _mkl_linear _linear_pointwise",
    "gates and state of the scan": "CellScan CellScanBackward",
    "activations of the MLP": "elu elu_backward",
    "copies": "copy_ cat index stack _mkl_reorder_linear_weight _reorder_linear_weight",
    "views": "select as_strided unbind slice view t transpose expand",
}
"""Operations by their main purpose in an update; all their uses are counted under it."""


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


def shares_of(profiler: profile) -> list[tuple[str, float, int]]:
    """Return kinds of operations, their share of a CPU's time, and their calls in the update."""
    kinds = {name: kind for kind, names in KINDS.items() for name in names.split()}
    times, calls = Counter(), Counter()
    for event in profiler.key_averages():
        kind = kinds.get(event.key.rpartition("::")[2], "the rest")
        times[kind] += event.self_cpu_time_total
        calls[kind] += event.count
    return [(kind, times[kind] / sum(times.values()), calls[kind]) for kind in (*KINDS, "the rest")]
