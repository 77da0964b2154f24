"""What a CUDA engine does depends on shapes alone: nothing waits for the device.

The operations are listed on a CPU; that a device agrees is seen in ``test_cuda_device.py``.
"""

import pytest
from support.scan_cases import make_case
from torch.utils._python_dispatch import TorchDispatchMode

from rsl_tbptt.core.scan import recurrent_scan


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
    recurrent_scan(*case, engine.name)
    with Operations() as recorded:
        outputs, _ = recurrent_scan(*case, engine.name)
        if backward:
            outputs.sum().backward()
    return recorded.seen


@pytest.mark.engines(devices=("cuda",), hand_written=True)
def test_the_host_never_asks_the_device(engine, cell, device):
    quiet = operations(engine, cell, device, 5, done_rate=0.0)
    assert not [name for name in quiet if name.startswith(WAITING)]
    assert operations(engine, cell, device, 5, done_rate=0.4) == quiet


@pytest.mark.engines(name="fused")
def test_an_engine_that_asks_is_seen(engine, cell, device):
    assert {"nonzero", "_local_scalar_dense"} & set(operations(engine, cell, device, 5, 0.4))


@pytest.mark.engines(name="cuda_cells")
@pytest.mark.parametrize("num_steps", [4, 9])
def test_two_products_a_step_and_a_few_a_window(engine, cell, device, num_steps):
    forward = operations(engine, cell, device, num_steps, 0.3, backward=False)
    both = operations(engine, cell, device, num_steps, 0.3)
    assert forward.count("mm") == 2 * (num_steps + 1)
    backward_of_layers = 2 * (num_steps - 1) + 2 * 2  # steps after the first, weights
    assert both.count("mm") - forward.count("mm") == backward_of_layers + 1  # dx of the upper layer
