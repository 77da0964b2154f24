"""The Triton engine on a CPU: its kernels in Triton's interpreter."""

import contextlib
import functools
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from rsl_tbptt.core.scan import ENGINES, triton


@functools.cache
def interpreted_kernels():
    """Return a second copy of the kernels' module, made of functions of the interpreter."""
    tl = pytest.importorskip("triton.language", reason="this torch came without Triton")
    path = Path(triton.__file__).with_name("kernels.py")
    spec = importlib.util.spec_from_file_location("interpreted_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec.loader.exec_module(kernels)
    for name, function in vars(kernels).copy().items():
        if hasattr(function, "fn"):
            # A call inside a kernel would prepare the interpreter again, a third of its time.
            setattr(kernels, name, function.fn)
    # The interpreter multiplies the bits of bfloat16.
    kernels.multiply = lambda rows, columns, sums, _: tl.dot(
        rows.to(sums.dtype), columns.to(sums.dtype), sums, out_dtype=sums.dtype
    )
    return kernels


@contextlib.contextmanager
def triton_engine_on_cpu():
    """Run the Triton engines in the interpreter."""
    kernels = interpreted_kernels()
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setenv("TRITON_INTERPRET", "1")  # for kernels of cells, which are defined later
        patch.setattr(triton, "_kernels", lambda: kernels)
        patch.setattr(triton, "_BLOCK", 2**14)  # the interpreter's time goes by programs
        patch.setattr(triton, "_DTYPES", (*triton._DTYPES, torch.float64))  # it multiplies all
        for name in ("triton", "triton_mm"):
            patch.setitem(ENGINES, name, ENGINES[name]._replace(device=None))
        yield
