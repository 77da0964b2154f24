"""Float32 products of a scan on CUDA have the precision of torch's own layers: cuDNN's switch."""

from types import SimpleNamespace

import pytest
import torch
from support.scan_cases import make_case
from torch.utils._python_dispatch import TorchDispatchMode

from rsl_tbptt.core.scan import recurrent_scan
from rsl_tbptt.core.scan.products import products_as_in_layers, tf32_in_layers

backends = torch.backends

needs_new_settings = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)


@pytest.fixture(autouse=True)
def full_precision():
    """Begin with torch's own precision, which the other tests change on a device; restore it."""
    yield
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = backends.cudnn.enabled = True
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        backends.fp32_precision = backends.cudnn.fp32_precision = "none"
        backends.cuda.matmul.fp32_precision = "none"


def by_flag(allowed):
    backends.cudnn.allow_tf32 = allowed


def by_layers(allowed):
    backends.cudnn.rnn.fp32_precision = "tf32" if allowed else "ieee"


def by_cudnn(allowed):
    backends.cudnn.rnn.fp32_precision = "none"  # inherits
    backends.cudnn.fp32_precision = "tf32" if allowed else "ieee"


def by_generic(allowed):
    backends.cudnn.rnn.fp32_precision = "none"
    backends.fp32_precision = "tf32" if allowed else "ieee"


def without_cudnn(allowed):
    backends.cudnn.enabled = False
    backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"


SETTINGS = [by_flag, by_layers, by_cudnn, by_generic, without_cudnn]


def products_in_tf32():
    """Return whether CUDA's products would use TF32, by the setting that kernels read."""
    return backends.cuda.matmul.fp32_precision == "tf32"


class Products(TorchDispatchMode):
    """Lists the precision of products as they run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.name().startswith(("aten::mm", "aten::addmm")):
            self.seen.append(products_in_tf32())
        return operation(*args, **(kwargs or {}))


@needs_new_settings
@pytest.mark.parametrize("setting", SETTINGS)
def test_each_setting_of_cudnn_is_followed(setting):
    for allowed in (False, True):
        setting(allowed)
        assert tf32_in_layers() == allowed
        with products_as_in_layers():
            assert products_in_tf32() == allowed


@needs_new_settings
@pytest.mark.parametrize("products", ["tf32", "ieee", "none"])
def test_the_precision_of_products_comes_back(products):
    backends.cuda.matmul.fp32_precision = products
    for allowed in (False, True):
        by_layers(allowed)
        with pytest.raises(ZeroDivisionError), products_as_in_layers():
            raise ZeroDivisionError
        assert backends.cuda.matmul.fp32_precision == products


@needs_new_settings
@pytest.mark.engines("triton")
@pytest.mark.parametrize("allowed", [True, False])
def test_all_products_of_a_scan_are_as_precise_as_the_layers(engine, cell, allowed, device):
    by_layers(allowed)
    backends.cuda.matmul.fp32_precision = "ieee" if allowed else "tf32"
    case = make_case(cell, 2, 4, 3, 0.3, device=device)
    with Products() as products:
        outputs, _ = recurrent_scan(*case, engine)
        num_forward = len(products.seen)
        outputs.sum().backward()
    assert num_forward > 0
    if device.type == "cpu":  # a GPU's backward pass runs in a thread that the mode does not see
        assert num_forward < len(products.seen)
    assert set(products.seen) == {allowed}
    assert products_in_tf32() != allowed


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("before", ["highest", "medium"])
def test_the_settings_of_torch_before_2_9(monkeypatch, allowed, before):
    cudnn = SimpleNamespace(enabled=True, allow_tf32=allowed, rnn=SimpleNamespace())
    torch.set_float32_matmul_precision(before)
    with monkeypatch.context() as patch:
        patch.setattr(backends.cuda, "matmul", SimpleNamespace())
        patch.setattr(backends, "cudnn", cudnn)
        assert tf32_in_layers() == allowed
        with products_as_in_layers():
            assert (torch.get_float32_matmul_precision() != "highest") == allowed
        assert torch.get_float32_matmul_precision() == before
