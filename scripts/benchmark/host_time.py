"""Time of the host in an optimiser step, outside the recurrent layers.

A GPU waits for the host if its own work takes less time. Tiny networks and few robots leave almost
nothing but the host's work, and one product stands in for the recurrent layers.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan import ENGINES, Engine
from rsl_tbptt.tools.bench import LIBRARIES, build, fill
from scripts.benchmark.cases import Robots

_TINY = {role: {"hidden_dims": [8, 8, 8]} for role in ("actor", "critic", "student", "teacher")}
_ENGINE = "one_product"
_ROBOTS = Robots(
    num_envs=16,
    num_steps=24,
    gradient_length=12,
    rnn_hidden_dim=8,
    models=_TINY,
    options={"scan_engine": _ENGINE},
)
_DEFAULTS = {"num_learning_epochs": 2, "num_mini_batches": 8, "buffer_rollouts": 50}
CASES = {
    "distillation": (
        replace(_ROBOTS, algorithm="distillation", options={**_ROBOTS.options, **_DEFAULTS}),
        2 * 8 * 2,
    ),
    "ppo": (replace(_ROBOTS, algorithm="ppo", gradient_length=24, num_learning_epochs=5), 5 * 4),
}
"""Cases by algorithm, with the optimiser steps of an update."""


def host_times(num_updates: int) -> dict[tuple[str, str], float]:
    """Return milliseconds of CPU time per optimiser step by algorithm and library, the median.

    rsl_rl's distillation is left out: it takes one step per window, without mini-batches.
    """
    torch.set_num_threads(1)
    times = {}
    with _one_product_for_recurrent_layers():
        for name, (case, num_steps) in CASES.items():
            for library in LIBRARIES if name == "ppo" else LIBRARIES[:1]:
                algorithm, taken = build(case, library), []
                for seed in range(2 + num_updates):
                    fill(algorithm, case, seed)
                    start = time.process_time()
                    algorithm.update()
                    taken.append(time.process_time() - start)
                times[name, library] = 1e3 * median(taken[2:]) / num_steps
    return times


@contextmanager
def _one_product_for_recurrent_layers() -> Iterator[None]:
    """Let one product of the inputs do for the recurrent layers, in both libraries."""

    def product(
        rnn: nn.LSTM, inputs: torch.Tensor, state: HiddenState = None, *unused: object
    ) -> tuple[torch.Tensor, HiddenState]:
        weight, _, bias, _ = rnn.all_weights[0]
        outputs = functional.linear(inputs, weight, bias)[..., : rnn.hidden_size]
        zeros = outputs.new_zeros(1, inputs.shape[1], rnn.hidden_size)
        return outputs, (zeros, zeros) if state is None else state

    with (
        patch.dict(ENGINES, {_ENGINE: Engine(product)}),
        patch.object(nn.LSTM, "forward", product),
    ):
        yield
