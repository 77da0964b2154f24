"""Compute the time of an update's matrix products alone, and profile where its time goes."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from statistics import median

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from rsl_tbptt.core.scan.products import multiply, multiply_columns
from scripts.benchmark.case import Case, build, fill, num_warm_ups, products_in, seconds_of

DTYPES = {"float32": torch.float32, "TF32": torch.float32, "bfloat16": torch.bfloat16}
"""Types of tensors by precision of products."""
PRODUCTS = {
    torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * prod(a) * b[1],
    torch.ops.mkl._mkl_linear: lambda x, _, w, *__, **___: 2 * prod(x) * w[0],
    torch.ops.mkldnn._linear_pointwise: lambda x, w, *_, **__: 2 * prod(x) * w[0],
}
"""Counters for operations that torch's own counter does not know, from argument shapes."""
KINDS = {
    "matrix products": "mm addmm addmm_ bmm _mkl_linear _linear_pointwise",
    "gates and state of the scan": "CellScan CellScanBackward",
    "activations of the MLP": "elu elu_backward",
    "copies": "copy_ cat index stack _mkl_reorder_linear_weight _reorder_linear_weight",
    "views": "select as_strided unbind slice view t transpose expand",
}
"""Operations by their main purpose in an update; all their uses are counted under it."""


def update_flops(case: Case) -> int:
    """Count the operations of an update's matrix products and convolutions, forward and backward.

    torch counts them in a small update by torch's own layers. Gradients that are not needed, those
    of observations and of the state before a window, are not computed.
    """
    period = getattr(case, "camera_period", None) or 1
    few = 2 * case.batches * period  # all phases of a camera
    small = replace(
        case, num_envs=few, num_learning_epochs=1, device="cpu", use_mixed_precision=False
    )
    algorithm = build(small, "rsl_tbptt")
    fill(algorithm, small, seed=0)
    algorithm.update()
    fill(algorithm, small, seed=1)  # with the first rollout in the replay buffer, if there is one
    with FlopCounterMode(display=False, custom_mapping=PRODUCTS) as counter:
        algorithm.update()
    return counter.get_total_flops() * case.num_learning_epochs * case.num_envs // few


def product_rates(device: str, seconds: float = 0.1) -> dict[str, float]:
    """Measure how fast matrix products are: the highest rate in operations per second, by dtype.

    The shapes are those of an LSTM-256's step, forward and backward, with 256 to 4,096
    environments.

    Args:
        device: Device to measure on.
        seconds: Time spent on each shape.
    """
    rates = dict.fromkeys(DTYPES, 0.0)
    if device == "cpu":
        del rates["TF32"]
    num_products = 1 if device == "cpu" else 20  # so that a GPU's launches overlap
    for name, n in product(rates, (256, 1024, 4096)):
        x, gates, w, w_hh = (
            torch.randn(*shape, device=device, dtype=DTYPES[name])
            for shape in ((n, 305), (n, 1024), (1024, 305), (1024, 256))
        )
        for multiplied, a, b in (
            (multiply, x, w.t()),
            (multiply, gates, w_hh),
            (multiply_columns, gates, x),
        ):
            operations, spent = 2 * a.numel() * b.shape[1] * num_products, 0.0
            while spent < seconds:
                with products_in(name):
                    taken = seconds_of(partial(_repeat, num_products, multiplied, a, b), device)
                rates[name] = max(rates[name], operations / taken)
                spent += taken
    return rates


def _repeat(times: int, function: Callable[..., object], *arguments: torch.Tensor) -> None:
    for _ in range(times):
        function(*arguments)


def time_update(case: Case, num_updates: int = 5) -> tuple[float, float]:
    """Return the seconds that our update takes, and those that the host is busy; medians."""
    algorithm = build(case, "rsl_tbptt")
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
