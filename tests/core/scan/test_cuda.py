"""The CUDA engine waits for nothing, and the stand-ins for torch's kernels are what they stand for.

The operations are listed on a CPU; that a device agrees is seen in ``test_cuda_device.py``.
"""

import pytest
import torch
from support import fused_cells
from support.scan_cases import H, make_case
from support.tolerances import EXACT_FLOAT64
from torch.utils._python_dispatch import TorchDispatchMode

from rsl_tbptt.core.scan import cuda, recurrent_scan

KERNELS = {
    "_thnn_fused_lstm_cell": fused_cells.lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": fused_cells.lstm_cell_backward,
    "_thnn_fused_gru_cell": fused_cells.gru_cell,
    "_thnn_fused_gru_cell_backward": fused_cells.gru_cell_backward,
}


@pytest.mark.parametrize("name", list(fused_cells.SCHEMAS))
def test_torch_declares_the_cells_as_the_engines_call_them(name):
    schema = getattr(torch.ops.aten, name).default._schema
    assert str(schema) == f"aten::{name}{fused_cells.SCHEMAS[name]}"


@pytest.mark.parametrize("name", list(KERNELS))
def test_the_stand_ins_equal_torchs_kernels(name, device):
    if device.type != "cuda":
        pytest.skip("needs --device cuda")
    torch.manual_seed(0)
    width = (4 if "lstm" in name else 3) * H

    def random(*shape):
        return torch.rand(shape, dtype=torch.float64)

    if name == "_thnn_fused_lstm_cell_backward_impl":
        arguments = [*(random(5, H) for _ in range(4)), random(5, width), True]
    elif name == "_thnn_fused_gru_cell_backward":
        arguments = [random(5, H), random(5, 5 * H), True]
    else:
        arguments = [random(5, width), random(5, width), random(5, H), random(width), random(width)]
    moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
    results = getattr(torch.ops.aten, name)(*moved)
    for got, want in zip(results, KERNELS[name](*arguments), strict=True):
        torch.testing.assert_close(got.cpu(), want, **EXACT_FLOAT64)


class Operations(TorchDispatchMode):
    """Lists the operations that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.seen.append(operation.name().removeprefix("aten::").split(".")[0])
        return operation(*args, **(kwargs or {}))


WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "masked_select",
    "item",
    "equal",
    "unique",
)
"""Operations whose result or its size the host has to know."""


def operations(engine, cell, device, num_steps, done_rate, backward=True):
    """Return the names of all operations of a scan."""
    case = make_case(cell, 2, num_steps, 4, done_rate, device=device)
    recurrent_scan(*case, engine)
    with Operations() as recorded:
        outputs, _ = recurrent_scan(*case, engine)
        if backward:
            outputs.sum().backward()
    return recorded.seen


@pytest.mark.engines("cuda")
def test_the_host_never_asks_the_device(engine, cell, device):
    quiet = operations(engine, cell, device, 5, done_rate=0.0)
    assert not [name for name in quiet if name.startswith(WAITING)]
    assert operations(engine, cell, device, 5, done_rate=0.4) == quiet


@pytest.mark.engines("cuda")
def test_two_products_a_step_and_a_few_a_window(engine, cell, device, monkeypatch):
    monkeypatch.setattr(cuda, "_situation", lambda device: None)  # run step by step
    num_steps = 4
    forward = operations(engine, cell, device, num_steps, 0.3, backward=False)
    both = operations(engine, cell, device, num_steps, 0.3)
    assert forward.count("mm") == 2 * (num_steps + 1)
    backward_of_layers = 2 * (num_steps - 1) + 2 * 2  # steps after the first, weights
    assert both.count("mm") - forward.count("mm") == backward_of_layers + 1  # dx of the upper layer
