"""The limit of the machine: what an update's matrix products alone would take.

Shapes: N environments, D inputs, H hidden, G gates (4H for an LSTM, 3H for a GRU).
"""

from __future__ import annotations

import time
from itertools import pairwise

import torch

from rsl_tbptt.bench.camera import CNN, FRAME_SHAPE, Camera
from rsl_tbptt.bench.case import HIDDEN_DIMS, OBS_DIM, OUTPUTS, Case
from rsl_tbptt.bench.speed import seconds_of

GATES = {"lstm": 4, "gru": 3}
NUM_ENVS = (256, 1024, 4096)
"""Rows of the products whose rate is measured."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def update_flops(case: Case) -> int:
    """Count the floating-point operations of an update's matrix products and convolutions.

    Forward: ``x W_ih`` and ``h W_hh`` in every layer and step, and the MLP. Backward: the same
    again for the weights' gradients, and once more for the inputs' gradients, except where nobody
    needs them: of the observations, and of the state before a window. A CNN sees every new frame
    once, and the one that is shown when a window begins.

    Args:
        case: The case.

    Returns:
        Operations of one epoch on all models; a product of (m, k) and (k, n) has 2 m k n.
    """
    num_windows = -(-case.num_steps // case.gradient_length)
    steps, cut_steps = case.num_steps, case.num_steps - num_windows
    hidden = case.rnn_hidden_dim
    gates = GATES[case.rnn_type] * hidden
    recurrent = gates * hidden * (2 * steps + cut_steps) * case.rnn_num_layers
    features, convolutions, num_inputs = 0, 0, 2 * OBS_DIM
    if case.camera_period is not None:
        features, convolutions = _convolutions()
        num_inputs = 3 * (OBS_DIM + features)  # one product for the gradients of all inputs
    inputs = gates * steps * (num_inputs + 3 * hidden * (case.rnn_num_layers - 1))
    flops = 2 * convolutions * _num_frames(case) if case.camera_period is not None else 0
    for outputs in OUTPUTS[case.algorithm].values():
        mlp = 3 * steps * sum(a * b for a, b in pairwise([hidden, *HIDDEN_DIMS, outputs]))
        flops += 2 * case.num_envs * (recurrent + inputs + mlp)
    return flops


def _convolutions() -> tuple[int, int]:
    """Return the features of a frame, and its products of the CNN forward and backward."""
    channels, *size = FRAME_SHAPE
    total, stride = 0, CNN["stride"]
    for layer, (out, kernel) in enumerate(
        zip(CNN["output_channels"], CNN["kernel_size"], strict=True)
    ):
        size = [(length - kernel) // stride + 1 for length in size]
        products = channels * kernel**2 * out * size[0] * size[1]
        total += products * (2 if layer == 0 else 3)  # nobody needs the frame's gradient
        channels = out
    return channels * size[0] * size[1], total


def _num_frames(case: Case) -> int:
    """Return the frames that are encoded in an update."""
    assert case.camera_period is not None
    camera = Camera(case.num_envs, case.camera_period)
    return sum(
        int(camera.is_new(step).sum()) if step % case.gradient_length else case.num_envs
        for step in range(case.num_steps)
    )


def product_rates(device: str, seconds: float) -> dict[str, dict[str, float]]:
    """Measure how fast matrix products are, with the shapes of an LSTM-256's update.

    For N environments these are ``(N, D+H+1) (D+H+1, G)`` of the forward pass (inputs, state and
    bias as one product), ``(N, G) (G, H)`` for the state's gradient and ``(G, N) (N, D+H+1)`` for
    the weights'.

    Args:
        device: Where.
        seconds: Time spent on each shape.

    Returns:
        By precision and shape: the highest rate seen, in operations per second.
    """
    hidden = 256
    joined, gates = OBS_DIM + hidden + 1, GATES["lstm"] * hidden
    rates: dict[str, dict[str, float]] = {}
    for name, dtype in DTYPES.items():
        rates[name] = {}
        for n in NUM_ENVS:
            x, d_gates = (torch.randn(n, columns, device=device) for columns in (joined, gates))
            w, w_hh = (torch.randn(gates, columns, device=device) for columns in (joined, hidden))
            for a, b in ((x, w.t()), (d_gates, w_hh), (d_gates.t(), x)):
                (m, k), columns = a.shape, b.shape[1]
                shape = f"({m}, {k}) ({k}, {columns})"
                rates[name][shape] = _rate(a.to(dtype), b.to(dtype), seconds)
    return rates


def _rate(a: torch.Tensor, b: torch.Tensor, seconds: float) -> float:
    """Return the rate of the fastest of repeated products."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.mm(a, b)
    num_products = 20 if a.is_cuda else 1  # so that a GPU's launches overlap

    def multiply() -> None:
        for _ in range(num_products):
            torch.mm(a, b, out=out)

    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, seconds_of(multiply, str(a.device)))
    return 2 * m * k * n * num_products / best
