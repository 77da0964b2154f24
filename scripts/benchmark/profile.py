"""Where the time of an update goes, by torch's profiler."""

from __future__ import annotations

from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile

from rsl_tbptt.bench.case import Case, build, fill

KINDS = {
    "matrix products": ("mm", "addmm", "addmm_", "bmm"),
    "gates and state of the scan": (
        *("LstmScan", "LstmScanBackward", "GruScan", "GruScanBackward"),
        *("addcmul", "addcmul_", "lerp", "lerp_", "tanh", "tanh_", "tanh_backward"),
        *("mul", "mul_", "add_", "index_fill_"),
    ),
    "activations of the MLP": ("elu", "elu_backward"),
    "copies": ("copy_", "cat", "index", "stack"),
    "views": ("select", "as_strided", "unbind", "slice", "view", "t", "transpose", "expand"),
}
"""Operations by what they do in an update; some of the scan's are used elsewhere, too."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Part of an update."""

    kind: str
    share: float
    """Of the time of all operations."""
    num_calls: int


def profile_update(case: Case, num_updates: int = 3) -> list[Share]:
    """Profile our updates, after two to warm up, and sum the time of each kind of operation."""
    algorithm = build(case, "rsl_tbptt")
    for seed in range(2):
        fill(algorithm, case, seed)
        algorithm.update()
    totals = {kind: [0.0, 0.0] for kind in (*KINDS, "the rest")}
    for seed in range(num_updates):
        fill(algorithm, case, seed)
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            algorithm.update()
        for event in profiler.key_averages():
            totals[_kind(event.key)][0] += event.self_cpu_time_total
            totals[_kind(event.key)][1] += event.count
    everything = sum(time for time, _ in totals.values())
    return [
        Share(kind=kind, share=time / everything, num_calls=round(calls / num_updates))
        for kind, (time, calls) in totals.items()
    ]


def _kind(operation: str) -> str:
    name = operation.removeprefix("aten::")
    return next((kind for kind, names in KINDS.items() if name in names), "the rest")
