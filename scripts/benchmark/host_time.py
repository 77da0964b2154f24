"""Time of the host in an optimiser step.

A GPU waits for the host if its own work takes less time. Tiny networks and few robots leave almost
nothing but the host's work. On a CPU recurrent layers that compute nothing leave out the scan,
which there is no work of the host.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan import ENGINES, Engine
from scripts.benchmark.case import LIBRARIES, Case, build, fill, num_warm_ups, seconds_of

_TINY = {role: {"hidden_dims": [8, 8, 8]} for role in ("actor", "critic", "student", "teacher")}
_ENGINE = "no_work"
_ROBOTS = Case(num_envs=16, num_steps=24, rnn_hidden_dim=8, models=_TINY)
_DEFAULTS = {"num_learning_epochs": 2, "num_mini_batches": 8, "buffer_rollouts": 50}
CASES = {
    "distillation": (
        replace(_ROBOTS, algorithm="distillation", gradient_length=15, options=_DEFAULTS),
        2 * 8 * 2,
    ),
    "ppo": (replace(_ROBOTS, algorithm="ppo", gradient_length=24, num_learning_epochs=5), 5 * 4),
}
"""Cases by algorithm, with the optimiser steps of an update."""


def host_times(num_updates: int, device: str = "cpu") -> dict[tuple[str, str], float]:
    """Return milliseconds per optimiser step by algorithm and library, the median.

    On a CPU they are CPU time outside the recurrent layers. On a GPU they are the update's time
    with recurrent layers, and the host waits for the GPU at its end.

    rsl_rl's distillation is left out: it takes one step per window, without mini-batches.
    """
    torch.set_num_threads(1)
    times, on_cpu = {}, device == "cpu"
    engine = {"scan_engine": _ENGINE} if on_cpu else {}
    with _recurrent_layers_cost_nothing() if on_cpu else nullcontext():
        for name, (case, num_steps) in CASES.items():
            for library in LIBRARIES if name == "ppo" else LIBRARIES[:1]:
                case = replace(case, device=device, options={**case.options, **engine})
                algorithm, taken = build(case, library), []
                warm_ups = 1 + num_warm_ups(device)
                for seed in range(warm_ups + num_updates):
                    fill(algorithm, case, seed)
                    start = time.process_time()
                    seconds = seconds_of(algorithm.update, device)
                    taken.append(time.process_time() - start if on_cpu else seconds)
                times[name, library] = 1e3 * median(taken[warm_ups:]) / num_steps
    return times


class _Nothing(torch.autograd.Function):
    """Recurrent layers that cost next to nothing: outputs and gradients are zero."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, outputs: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the outputs."""
        ctx.shapes = inputs.shape, [weight.shape for weight in weights]
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return zeros for the weights."""
        of_inputs, of_weights = ctx.shapes
        zeros = (grad.new_zeros(shape) for shape in of_weights)
        return grad.new_zeros(of_inputs) if ctx.needs_input_grad[0] else None, None, *zeros


@contextmanager
def _recurrent_layers_cost_nothing() -> Iterator[None]:
    """Replace the recurrent layers of both libraries."""

    def scan(
        rnn: nn.LSTM, inputs: torch.Tensor, state: HiddenState = None, *_unused: object
    ) -> tuple[torch.Tensor, HiddenState]:
        zeros = inputs.new_zeros(*inputs.shape[:2], rnn.hidden_size)
        return _Nothing.apply(inputs, zeros, *rnn.parameters()), state or (zeros[:1], zeros[:1])

    with patch.dict(ENGINES, {_ENGINE: Engine(scan)}), patch.object(nn.LSTM, "forward", scan):
        yield
