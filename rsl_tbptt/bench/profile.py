"""Where the time of an update goes, by torch's profiler."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile

from rsl_tbptt.bench.case import Case, build, fill

SCAN = (
    "LstmScan LstmScanBackward GruScan GruScanBackward addcmul addcmul_ lerp lerp_ tanh tanh_"
    " tanh_backward mul mul_ add_ index_fill_"
)
KINDS = {
    "matrix products": "mm addmm addmm_ bmm _mkl_linear",
    "gates and state of the scan": SCAN,
    "activations of the MLP": "elu elu_backward",
    "copies": "copy_ cat index stack _mkl_reorder_linear_weight",
    "views": "select as_strided unbind slice view t transpose expand",
}
"""Operations by what they do in an update; some of the scan's are used elsewhere, too."""


STEPS = ("LstmScan", "LstmScanBackward", "GruScan", "GruScanBackward")
"""Scans of one layer, whose own time is Python's and C's, step by step."""

OPERANDS = {"mm": slice(2), "addmm_": slice(1, 3), "_mkl_linear": slice(0, 3, 2)}
"""Places of the two factors among the arguments of the products that a scan asks for."""


@dataclass(frozen=True, kw_only=True)
class StepsShare:
    """What of an update is done one step after the other."""

    case: Case
    num_envs: int
    """Environments that a step computes at once."""
    share: float
    """Of the time of the update."""
    flops: int
    """Operations of the steps' matrix products, ..."""
    seconds: float
    """... and the time that they took."""

    @property
    def rate(self) -> float:
        """Operations per second of the steps' matrix products."""
        return self.flops / self.seconds


def share_of_steps(case: Case) -> StepsShare:
    """Profile our update for what has to wait for the step before.

    That is a step's product and what follows it in the scan, forward and backward. Encoders, MLP,
    losses and the gradients of weights run over all steps at once.

    Args:
        case: What is updated, on a CPU, in one micro-batch for each mini-batch.

    Returns:
        The share.
    """
    num_envs = case.num_envs // case.batches
    total, steps, products, flops = 0.0, 0.0, 0.0, 0  # microseconds
    algorithm = build(case, "rsl_tbptt")
    fill(algorithm, case, seed=0)
    algorithm.update()
    fill(algorithm, case, seed=1)
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True)
    with profiler:
        algorithm.update()
    for event in profiler.key_averages(group_by_input_shape=True):
        total += event.self_cpu_time_total
        if event.key in STEPS:
            steps += event.self_cpu_time_total
        elif (name := _name(event.key)) in OPERANDS:
            (num_rows, num_inner), weights = event.input_shapes[OPERANDS[name]]
            if num_rows == num_envs and num_inner != num_envs * case.gradient_length:
                products += event.self_cpu_time_total
                flops += 2 * num_rows * math.prod(weights) * event.count
    return StepsShare(
        case=case,
        num_envs=num_envs,
        share=(steps + products) / total,
        flops=flops,
        seconds=1e-6 * products,
    )


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
            kind = kinds.get(_name(event.key), "the rest")
            times[kind] += event.self_cpu_time_total
            calls[kind] += event.count
    return [
        (kind, times[kind] / sum(times.values()), round(calls[kind] / num_updates))
        for kind in (*KINDS, "the rest")
    ]


def _name(operation: str) -> str:
    """Return an operation's name without its library's."""
    return operation.rpartition("::")[2]
