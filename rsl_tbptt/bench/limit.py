"""The limit of the machine: what an update's matrix products alone would take.

Shapes: N environments, D inputs, H hidden, G gates (4H for an LSTM, 3H for a GRU).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn

from rsl_tbptt.bench.camera import CNN, Camera
from rsl_tbptt.bench.case import OBS_DIM, TRAINED, Case, build
from rsl_tbptt.bench.speed import seconds_of
from rsl_tbptt.core.scan.layers import products_as_in_layers

GATES = {"lstm": 4, "gru": 3}
NUM_ENVS = (256, 1024, 4096)
"""Rows of the products whose rate is measured."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def update_flops(case: Case) -> int:
    """Count the floating-point operations of an update's matrix products and convolutions.

    Forward: ``x W_ih`` and ``h W_hh`` in every layer and step, and the MLP. Backward: the same
    again for the weights' gradients, and once more for the inputs' gradients, except where nobody
    needs them: of the observations, and of the state before a window. A CNN sees every new frame
    once, and the one that is shown when a window begins, and its features are multiplied as often.

    Args:
        case: The case.

    Returns:
        Operations on all models in all epochs; a product of (m, k) and (k, n) has 2 m k n.
    """
    num_windows = -(-case.num_steps // case.gradient_length)
    steps, cut_steps = case.num_steps, case.num_steps - num_windows
    sees = case.camera_period is not None
    few = replace(case, num_envs=2 * case.batches, num_steps=1, gradient_length=1, device="cpu")
    algorithm = build(few, "rsl_rl")
    flops = 0
    for role in TRAINED[case.algorithm]:
        model, products = getattr(algorithm, role), 0
        num_features = model.cnn_latent_dim if sees else 0
        for layer, (w_ih, w_hh, *_) in enumerate(model.rnn.rnn.all_weights):
            seen_once = len(w_ih) * num_features if layer == 0 else 0
            products += (w_ih.numel() - seen_once) * steps * (3 if layer else 2)
            products += w_hh.numel() * (2 * steps + cut_steps)
        if sees:
            of_features = 3 * num_features * len(model.rnn.rnn.weight_ih_l0)
            flops += 2 * _num_frames(case) * (_convolutions(case.image_size) + of_features)
        layers = (layer for layer in model.mlp if isinstance(layer, nn.Linear))
        products += 3 * steps * sum(layer.weight.numel() for layer in layers)
        flops += 2 * case.num_envs * products
    return flops * case.num_learning_epochs


def _convolutions(image_size: Sequence[int]) -> int:
    """Return the products of the CNN with one frame, forward and backward."""
    channels, size = 1, image_size
    total, stride = 0, CNN["stride"]
    for layer, (out, kernel) in enumerate(
        zip(CNN["output_channels"], CNN["kernel_size"], strict=True)
    ):
        size = [(length - kernel) // stride + 1 for length in size]
        products = channels * kernel**2 * out * size[0] * size[1]
        total += products * (2 if layer == 0 else 3)  # nobody needs the frame's gradient
        channels = out
    return total


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
    the weights'. On a GPU float32 products have the precision of the memory.

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
                with nullcontext() if device == "cpu" else products_as_in_layers():
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
