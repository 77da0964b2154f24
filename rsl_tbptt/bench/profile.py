"""Where the time of an update goes, by torch's profiler."""

from __future__ import annotations

from collections import Counter

from torch.profiler import ProfilerActivity, profile

from rsl_tbptt.bench.case import Case, build, fill

SCAN = (
    "LstmScan LstmScanBackward GruScan GruScanBackward addcmul addcmul_ lerp lerp_ tanh tanh_"
    " tanh_backward mul mul_ add_ index_fill_"
)
KINDS = {
    "matrix products": "mm addmm addmm_ bmm",
    "gates and state of the scan": SCAN,
    "activations of the MLP": "elu elu_backward",
    "copies": "copy_ cat index stack",
    "views": "select as_strided unbind slice view t transpose expand",
}
"""Operations by what they do in an update; some of the scan's are used elsewhere, too."""


def profile_update(case: Case, num_updates: int = 3) -> list[tuple[str, float, int]]:
    """Profile our updates, after two to warm up.

    Args:
        case: What is updated.
        num_updates: Updates that are profiled.

    Returns:
        Kinds of operations, their share of the time of all, and their calls in an update.
    """
    kinds = {name: kind for kind, names in KINDS.items() for name in names.split()}
    times, calls = Counter(), Counter()
    algorithm = build(case, "rsl_tbptt")
    for seed in range(2):
        fill(algorithm, case, seed)
        algorithm.update()
    for seed in range(num_updates):
        fill(algorithm, case, seed)
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            algorithm.update()
        for event in profiler.key_averages():
            kind = kinds.get(event.key.removeprefix("aten::"), "the rest")
            times[kind] += event.self_cpu_time_total
            calls[kind] += event.count
    return [
        (kind, times[kind] / sum(times.values()), round(calls[kind] / num_updates))
        for kind in (*KINDS, "the rest")
    ]
