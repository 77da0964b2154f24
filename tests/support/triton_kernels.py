"""Stand-ins on the CPU for TorchRL's Triton kernels, written from their documentation."""

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest
import torch

from rsl_tbptt.core.scan import ENGINES
from rsl_tbptt.core.scan.cuda import torchrl_triton


@contextlib.contextmanager
def torchrl_on_cpu():
    """Run the engine ``torchrl`` on these stand-ins."""
    kernels = SimpleNamespace(lstm_triton=lstm_triton, gru_triton=gru_triton)
    on_cpu = dataclasses.replace(ENGINES["torchrl"], devices=("cpu",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchrl_triton, "_kernels", lambda: kernels)
        patch.setitem(ENGINES, "torchrl", on_cpu)
        yield


def lstm_triton(x, hidden, cell, *rest, input_precision):
    """Return the hidden and cell states of all steps, then those after the last."""
    *weights, starts, compute_dtype = rest
    assert (compute_dtype, input_precision) == (torch.float32, "tf32")  # as cuDNN by default
    return layer(lambda x, s: torch._VF.lstm_cell(x, s, *weights), x, (hidden, cell), starts)


def gru_triton(x, hidden, *rest, input_precision):
    """Return the states of all steps, then the one after the last."""
    *weights, starts, compute_dtype = rest
    assert (compute_dtype, input_precision) == (torch.float32, "tf32")  # as cuDNN by default
    return layer(lambda x, s: [torch._VF.gru_cell(x, s[0], *weights)], x, (hidden,), starts)


def layer(step, x, states, starts):
    """Run a layer on (B, T) inputs; where ``starts``, the state is that step's value."""
    assert x.is_contiguous()
    assert starts.is_contiguous()
    assert all(state.shape[:2] == x.shape[:2] for state in states)
    current, outputs = [state[:, 0] for state in states], []
    for t in range(x.shape[1]):
        given = zip(states, current, strict=True)
        current = [torch.where(starts[:, t, None], value[:, t], h) for value, h in given]
        current = step(x[:, t], current)
        outputs.append(current)
    steps = [torch.stack(kind, dim=1) for kind in zip(*outputs, strict=True)]
    return (*steps, *current)
