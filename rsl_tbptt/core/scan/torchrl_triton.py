"""CUDA, optional: TorchRL's Triton kernels, which run the whole window of a layer in one launch.

They take time as the second dimension and a value of the state for every step, read where an
episode starts; both are made here, layer by layer. TF32 is used where torch's matrix products may.
"""

from typing import Any

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan.layers import Tensors, scan_layers
from rsl_tbptt.core.scan.precision import tf32_allowed


def scan(
    rnn: nn.LSTM | nn.GRU, inputs: torch.Tensor, state: HiddenState, episode_starts: torch.Tensor
) -> tuple[torch.Tensor, HiddenState]:
    """Run the layers one above the other. Arguments and result: see ``recurrent_scan``.

    Raises:
        NotImplementedError: If TorchRL's kernels are not installed, or the weights are not float32.
    """
    return scan_layers(rnn, inputs, state, episode_starts, _scan_layer)


def _scan_layer(
    inputs: torch.Tensor,
    state: Tensors,
    weights: Tensors,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
) -> tuple[torch.Tensor, Tensors]:
    """Scan one layer; arguments and result as in ``LayerScan``."""
    if inputs.dtype != torch.float32:
        raise NotImplementedError(
            f"The dtype of the weights is {inputs.dtype}, expected torch.float32: the engine"
            " 'torchrl' has no other; use 'reference' or 'cuda_cells'."
        )
    kernels = _kernels()
    run = kernels.lstm_triton if len(state) == 2 else kernels.gru_triton
    starts = episode_starts.t().contiguous()
    per_step = (_value_per_step(tensor, starts) for tensor in state)
    precision = "tf32" if tf32_allowed() else "ieee"
    x = inputs.transpose(0, 1).contiguous()
    steps = run(x, *per_step, *weights, starts, operand_dtype, input_precision=precision)
    last = steps[len(state) :]
    return steps[0].transpose(0, 1), tuple(last)


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
        from torchrl.modules.tensordict_module import _rnn_triton  # type: ignore[import-not-found]
    except ImportError as error:
        raise NotImplementedError(
            "scan_engine is 'torchrl', expected TorchRL with its Triton kernels to be installed:"
            " pip install 'torchrl>=0.14' triton."
        ) from error
    return _rnn_triton
