"""One switch governs the precision of all engines: that of torch's matrix products."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rsl_tbptt.core.scan import precision


@pytest.fixture
def restore_precision():
    """Leave the precision of torch as it was."""
    recurrent = torch.backends.cudnn.rnn.fp32_precision
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.rnn.fp32_precision = recurrent


def allow_by_flag(allowed):
    torch.backends.cuda.matmul.allow_tf32 = allowed


def allow_by_name(allowed):
    torch.set_float32_matmul_precision("high" if allowed else "highest")


def allow_by_new_setting(allowed):
    torch.backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"


needs_new_setting = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9"
)


@needs_new_setting
@pytest.mark.parametrize("allow", [allow_by_flag, allow_by_name, allow_by_new_setting])
@pytest.mark.parametrize("before", ["tf32", "ieee"])
def test_cudnn_follows_the_precision_of_products(allow, before, restore_precision):
    assert not precision.tf32_allowed()
    for allowed in (True, False):
        allow(allowed)
        torch.backends.cudnn.rnn.fp32_precision = before
        assert precision.tf32_allowed() == allowed
        with precision.cudnn_follows_matmul():
            assert precision.cudnn_tf32() == allowed
        assert torch.backends.cudnn.rnn.fp32_precision == before


class OldMatmul:
    allow_tf32 = True


class OldCudnn:
    allow_tf32 = False


def test_the_settings_of_torch_before_2_9(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "matmul", OldMatmul)
    monkeypatch.setattr(torch.backends, "cudnn", OldCudnn)
    assert precision.tf32_allowed()
    with precision.cudnn_follows_matmul():
        assert OldCudnn.allow_tf32
    assert not OldCudnn.allow_tf32


@needs_new_setting
def test_the_backward_pass_follows_too(restore_precision):
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    seen = []

    class Settings(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            seen.append(precision.cudnn_tf32())
            return operation(*args, **(kwargs or {}))

    rnn = nn.GRU(2, 3, device="meta")
    outputs, _ = precision.run_layers(rnn, torch.randn(4, 2, 2, device="meta"), None)
    assert precision.cudnn_tf32()
    with Settings():
        torch.autograd.grad(outputs.sum(), list(rnn.parameters()))
    followed = [index for index, tf32 in enumerate(seen) if not tf32]
    assert followed
    assert followed == list(range(followed[0], followed[-1] + 1))
    assert precision.cudnn_tf32()
