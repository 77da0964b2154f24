"""What to set where an update ran out of the device's memory."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable

import torch

from rsl_tbptt.algorithms.update.memory_plan import MemoryPlan

_LEFT = 0.9
"""Share of what is free, and of what was too much, that is proposed: kernels take memory for
themselves, and what is free lies in pieces."""

_OTHER_ERRORS = (
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # no memory for its handle
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
)
"""What CUDA and its libraries say, which torch raises as a RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device has no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OTHER_ERRORS)


def explain(
    error: BaseException,
    make_plan: Callable[[], MemoryPlan] | None,
    num_micro_batches: int,
    budget_gb: float | None,
    device: torch.device,
) -> torch.OutOfMemoryError:
    """Return an error that names the ``memory_budget_gb`` with which the update would have fitted.

    Args:
        error: What ended the update, which has been undone. What it holds of it is freed.
        make_plan: Predicts what an update takes; None where that cannot be done alone.
        num_micro_batches: What the update asked for.
        budget_gb: ``memory_budget_gb`` as it is.
        device: Where the update ran.

    Returns:
        The error, one line.
    """
    traceback.clear_frames(error.__traceback__)  # they hold the activations
    free = _free(device)
    said = str(error).strip().splitlines() or [type(error).__name__]
    happened = f"the update ran out of memory ({said[0]}) and was undone"
    is_now = f"memory_budget_gb is {budget_gb}"
    plan = None
    if make_plan is not None:
        with contextlib.suppress(Exception):  # whatever it is, it must not hide the first
            plan = make_plan()
    if plan is None:
        fits = "a lower one" if free is None else f"at most {_LEFT * free / 1e9:.3g}, which is free"
        return torch.OutOfMemoryError(f"{is_now}, expected {fits}: {happened}.")
    predicted = plan.peak(num_micro_batches)
    most = _LEFT * (predicted if free is None else min(free, predicted))
    fits = next((n for n in range(1, plan.sizes.num_envs + 1) if plan.peak(n) <= most), None)
    if fits is None:
        least = plan.peak(plan.sizes.num_envs) / 1e9
        return torch.OutOfMemoryError(
            f"{is_now}, and none would do: {happened}; one environment at a time takes"
            f" {least:.3g} GB. Lower gradient_length, num_steps_per_env or num_envs, or free"
            " memory on the device."
        )
    return torch.OutOfMemoryError(
        f"{is_now}, expected at most {_rounded_up(plan.peak(fits) / 1e9)}: {happened}. It takes"
        f" about {predicted / 1e9:.3g} GB, and with that budget {fits} micro-batches"
        " (num_micro_batches stays 1)."
    )


def _free(device: torch.device) -> float | None:
    """Return the bytes that an update could take, where the device tells."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    return float(torch.cuda.mem_get_info(device)[0])


def _rounded_up(gigabytes: float) -> str:
    """Return a number of three digits that is not below ``gigabytes``."""
    rounded = float(f"{gigabytes:.3g}")
    return f"{rounded if rounded >= gigabytes else rounded * 1.01:.3g}"
