"""The counted peak is the size of the tensors that are alive at the same time."""

import pytest
import torch
from torch import nn

from rsl_tbptt.core.memory import PeakMemory
from rsl_tbptt.core.scan import products

KILO = 1000  # of float32: 4000 bytes


def test_counts_tensors_that_are_alive_at_once():
    with PeakMemory() as memory:
        a = torch.ones(KILO)
        b = a + 1
        del a
        b = b * 2  # never more than two at a time
        b.add_(1)
        del b
    assert memory.peak == 2 * 4 * KILO


def test_saved_activations_count_until_they_are_used():
    """Worked by hand: outputs of linear (400 kB) and ELU (400 kB), and a gradient of that size."""
    net = nn.Sequential(nn.Linear(100, 100, bias=False), nn.ELU())
    x = torch.randn(KILO, 100)
    with PeakMemory() as forward:
        output = net(x)
    with PeakMemory() as backward:
        output.backward(torch.ones_like(output))
    assert forward.peak == 2 * 400 * KILO
    assert 2 * 400 * KILO <= backward.peak <= 2 * 400 * KILO + 3 * 40 * KILO


@pytest.mark.parametrize("library", ["MKL", "oneDNN"])
def test_packed_weights_of_a_library_count_as_much_as_the_weights(library, monkeypatch):
    if not products.has(library):
        pytest.skip("this torch lacks it")
    monkeypatch.setattr(products, "library_for", lambda *_: library)
    factor = torch.randn(64, 32).t()
    with PeakMemory() as memory:
        product = products.step_product(8, torch.float32, factor)
        assert memory.now == factor.nbytes
        del product
        assert memory.now == 0


def test_uninitialised_memory_shows():
    like = torch.ones(3)
    for made in (torch.empty(3), torch.empty_like(like), like.new_empty(3)):
        assert made.isnan().all()
    assert torch.empty_strided((3,), (1,), dtype=torch.int32).eq(2**31 - 1).all()
    assert torch.empty(3, dtype=torch.bool).all()
