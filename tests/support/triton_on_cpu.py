"""The Triton engine on a CPU: its kernels in Triton's interpreter, its recordings run again."""

import contextlib
import functools
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from rsl_tbptt.core.scan import ENGINES, graphs, triton


@functools.cache
def interpreted_kernels():
    """Return a second copy of the kernels' module, made of functions of the interpreter."""
    pytest.importorskip("triton", reason="this torch came without Triton")
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
    return kernels


@contextlib.contextmanager
def triton_engine_on_cpu():
    """Run the Triton engine in the interpreter, recordings included."""
    kernels = interpreted_kernels()
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setenv("TRITON_INTERPRET", "1")  # for kernels of cells, which are defined later
        patch.setattr(triton, "_kernels", lambda: kernels)
        patch.setattr(triton, "_BLOCK", 2**14)  # the interpreter's time goes by programs
        patch.setattr(graphs, "record", record)
        patch.setattr(graphs, "situation_of", lambda device: "as always")
        patch.setattr(graphs, "max_bytes", lambda device: 2**40)
        patch.setattr(graphs, "cached_graphs", graphs.CachedGraphs())
        patch.setitem(ENGINES, "triton", ENGINES["triton"]._replace(device=None))
        yield


def recordings():
    """Return the free recordings by what they were made for."""
    return {
        (key, num_envs): list(free)
        for key, sizes in graphs.cached_graphs._free.items()
        for num_envs, free in sizes.items()
    }


def record(function, cache, before=None):
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
    cache.num_bytes += sum(storages.values())
    return SimpleNamespace(replay=replay), outputs
