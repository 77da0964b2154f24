"""The Triton engine on a CPU: its kernels in Triton's interpreter, its recordings run again."""

import contextlib
import functools
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from rsl_tbptt.core.scan import ENGINES, graphs, triton


@functools.cache
def interpreted_kernels():
    """Import the kernels as functions of Triton's interpreter, which this process keeps."""
    pytest.importorskip("triton", reason="this torch came without Triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        kernels = importlib.import_module("rsl_tbptt.core.scan.kernels")
    for name, function in vars(kernels).copy().items():
        if name.startswith("_") and hasattr(function, "fn"):
            # A call inside a kernel would prepare the interpreter again, a third of its time.
            setattr(kernels, name, function.fn)
    return kernels


@contextlib.contextmanager
def triton_engine_on_cpu():
    """Run the Triton engine in the interpreter, recordings included."""
    interpreted_kernels()
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(triton, "_BLOCK", 2**14)  # the interpreter's time goes by programs
        patch.setattr(graphs, "record", record)
        patch.setattr(graphs, "situation_of", lambda device: "as always")
        patch.setattr(graphs, "max_bytes", lambda device: 2**40)
        patch.setattr(graphs, "pool", graphs.Pool())
        patch.setitem(ENGINES, "triton", ENGINES["triton"]._replace(device=None))
        yield


def recordings():
    """Return the free recordings by what they were made for."""
    return {
        (key, num_envs): list(free)
        for key, sizes in graphs.pool._free.items()
        for num_envs, free in sizes.items()
    }


def record(function, pool, before=None):
    """Stand in for a CUDA graph: a replay runs ``function`` again into the same memory."""
    outputs = function()

    @torch.autocast("cpu", enabled=False)  # a graph does what was recorded, whatever surrounds it
    def replay():
        kept, new = pytree.tree_leaves(outputs), pytree.tree_leaves(function())
        for target, source in zip(kept, new, strict=True):
            if target is not None:
                target.copy_(source)

    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in pytree.tree_leaves(outputs)
        if tensor is not None
    }
    pool.num_bytes += sum(storages.values())
    return SimpleNamespace(replay=replay), outputs
