"""One precision switch for all engines: cuDNN's recurrent layers follow torch's matrix products.

torch lets cuDNN round float32 operands to TF32 unless told otherwise, and its own matrix products
only if told so, so that two engines would differ in speed and precision for no reason of theirs.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState


def tf32_allowed() -> bool:
    """Return whether CUDA's float32 matrix products may use TF32.

    Since torch 2.9 the new setting is read, which the old ones write too; to read the old one after
    the new one was written is an error.
    """
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def run_layers(
    rnn: nn.RNNBase, inputs: torch.Tensor, state: HiddenState
) -> tuple[torch.Tensor, HiddenState]:
    """Call ``rnn`` so that cuDNN uses TF32 where matrix products may, in the backward pass too.

    Args:
        rnn: Recurrent layers in time-major order.
        inputs: Shape: (T, N, D).
        state: State before step 0.

    Returns:
        Outputs and state of ``rnn``.
    """
    if inputs.device.type == "cpu" or cudnn_tf32() == tf32_allowed():
        return rnn(inputs, state)
    with cudnn_follows_matmul():
        outputs, state = rnn(inputs, state)
    if outputs.grad_fn is not None:
        follow = contextlib.ExitStack()
        outputs.grad_fn.register_prehook(lambda _: follow.enter_context(cudnn_follows_matmul()))
        outputs.grad_fn.register_hook(lambda *_: follow.close())
    return outputs, state


@contextlib.contextmanager
def cudnn_follows_matmul() -> Iterator[None]:
    """Let cuDNN's recurrent layers use TF32 exactly where matrix products may; restore at exit."""
    before = cudnn_tf32()
    _set_cudnn_tf32(tf32_allowed())
    try:
        yield
    finally:
        _set_cudnn_tf32(before)


def cudnn_tf32() -> bool:
    """Return whether cuDNN's recurrent layers may use TF32."""
    recurrent = _recurrent_settings()
    if recurrent is not None:
        return recurrent.fp32_precision == "tf32"
    return bool(torch.backends.cudnn.allow_tf32)


def _set_cudnn_tf32(allowed: bool) -> None:
    recurrent = _recurrent_settings()
    if recurrent is not None:
        recurrent.fp32_precision = "tf32" if allowed else "ieee"
    else:
        torch.backends.cudnn.allow_tf32 = allowed


def _recurrent_settings() -> Any:
    """Return cuDNN's settings for recurrent layers, None before torch 2.9, which has none."""
    recurrent = getattr(torch.backends.cudnn, "rnn", None)
    return recurrent if hasattr(recurrent, "fp32_precision") else None
