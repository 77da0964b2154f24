"""CUDA, optional: TorchRL's Triton kernels, which run the whole window of a layer in one launch.

They take time as the second dimension and a value of the state for every step, read where an
episode starts; both are made here, layer by layer. TF32 is used where torch's own layers may.
"""

import functools
import importlib
from typing import Any

import torch

from rsl_tbptt.core.scan.layers import LayerScan, Tensors, tf32_in_layers


def _scan_layer(
    kernel: str,
    inputs: torch.Tensor,
    state: Tensors,
    weights: Tensors,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
) -> tuple[torch.Tensor, Tensors]:
    """Scan one layer with the kernel of that name; the rest as in ``LayerScan``.

    Raises:
        NotImplementedError: If TorchRL's kernels are not installed.
    """
    run = getattr(_kernels(), kernel)
    starts = episode_starts.t().contiguous()
    per_step = (_value_per_step(tensor, starts) for tensor in state)
    precision = "tf32" if tf32_in_layers() else "ieee"
    x = inputs.transpose(0, 1).contiguous()
    steps = run(x, *per_step, *weights, starts, operand_dtype, input_precision=precision)
    last = steps[len(state) :]
    return steps[0].transpose(0, 1), tuple(last)


def is_available() -> bool:
    """Return whether TorchRL's kernels are installed."""
    try:
        _kernels()
    except NotImplementedError:
        return False
    return True


def _value_per_step(state_NH: torch.Tensor, starts_NT: torch.Tensor) -> torch.Tensor:
    """Return the state before step 0, then zeros for the other steps, shape (N, T, H)."""
    first = state_NH.masked_fill(starts_NT[:, :1], 0.0).unsqueeze(1)
    later = first.new_zeros(1, 1, 1).expand(len(first), starts_NT.shape[1] - 1, first.shape[2])
    return torch.cat((first, later), dim=1)


def _kernels() -> Any:
    """Return TorchRL's module of Triton kernels.

    Raises:
        NotImplementedError: If it is missing.
    """
    try:
        return importlib.import_module("torchrl.modules.tensordict_module._rnn_triton")
    except ImportError as error:
        raise NotImplementedError(
            "scan_engine is 'torchrl', expected TorchRL with its Triton kernels to be installed:"
            " pip install 'torchrl>=0.14' triton."
        ) from error


LAYERS: dict[str, LayerScan] = {
    "lstm": functools.partial(_scan_layer, "lstm_triton"),
    "gru": functools.partial(_scan_layer, "gru_triton"),
}
"""Scans of one layer, by the name of its cell."""
