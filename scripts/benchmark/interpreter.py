"""The Triton engine on a CPU: its kernels in Triton's interpreter."""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from rsl_tbptt.algorithms import fused
from rsl_tbptt.core.scan import ENGINES, triton

_INTERPRETS = {"TRITON_INTERPRET": "1"}


@functools.cache
def _interpreted(path: Path, *launched: str) -> ModuleType:
    """Return a second copy of a module, made of functions of the interpreter; some are launched."""
    spec = importlib.util.spec_from_file_location(f"interpreted_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    with patch.dict(os.environ, _INTERPRETS):
        spec.loader.exec_module(kernels)
    for name, function in vars(kernels).copy().items():
        if hasattr(function, "fn") and name not in launched:
            # A call inside a kernel would prepare the interpreter again, a third of its time.
            setattr(kernels, name, function.fn)
    return kernels


@functools.cache
def _kernels_of_cells() -> ModuleType:
    kernels = _interpreted(Path(triton.__file__).with_name("kernels.py"))
    tl = kernels.tl
    # The interpreter multiplies the bits of bfloat16.
    vars(kernels)["multiply"] = lambda rows, columns, sums, _: tl.dot(
        rows.to(sums.dtype), columns.to(sums.dtype), sums, out_dtype=sums.dtype
    )
    return kernels


def _aside(launch: Callable[..., None]) -> Callable[..., Sequence[Any]]:
    """Return a launch whose operations no mode sees; a recording repeats the launch."""

    def run(*arguments: Any, **constants: Any) -> Sequence[Any]:
        for mode in _get_current_dispatch_mode_stack():
            getattr(mode, "operations", []).append((run, arguments, constants, ()))
        with _disable_current_modes():
            launch(*arguments, **constants)
        return ()

    return run


@contextlib.contextmanager
def triton_engine_on_cpu() -> Iterator[None]:
    """Run the Triton engines, and what a step computes with them, in the interpreter."""
    path = Path(fused.__file__).with_name("fused_kernels.py")
    names = ("gaussian_forward", "gaussian_backward", "value_error", "clip_factors", "follow_kl")
    of_steps, of_cells = _interpreted(path, *names, "add"), _kernels_of_cells()
    kernel_of = triton._kernel

    def of_cell(*kernel: Any) -> Callable[..., Sequence[Any]]:
        return _aside(kernel_of(*kernel))

    def of_step(name: str, *grid: int) -> Callable[..., Sequence[Any]]:
        return _aside(getattr(of_steps, name)[grid])

    engines = {name: ENGINES[name]._replace(device=None) for name in ("triton", "triton_mm")}
    changes = (
        patch.dict(os.environ, _INTERPRETS),  # for kernels of cells, which are defined later
        patch.dict(ENGINES, engines),
        patch.multiple(triton, _kernels=lambda: of_cells, _kernel=of_cell),
        patch.object(triton, "_DTYPES", (*triton._DTYPES, torch.float64)),  # it multiplies all
        patch.object(fused, "_kernel", of_step),
        # The interpreter's time goes by programs.
        *(patch.object(module, "_BLOCK", 2**14) for module in (triton, fused)),
        np.errstate(all="ignore"),
    )
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield
