"""Time one window of recurrent layers, forward and backward: the engine next to a Python loop."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from rsl_tbptt.core.scan import CELLS, RecurrentLayers, recurrent_scan, unchanged_weights
from rsl_tbptt.core.scan.products import multiply_columns, step_product

NUM_STEPS, NUM_INPUTS, DONE_RATE = 24, 64, 0.02
NUM_ENVS = (64, 512, 4096)
SECONDS = 3.0
"""Time for the windows of a row; the result is the fastest, which other processes disturb least."""

Row = tuple[str, int, list[float]]


def cell_times(hidden_size: int) -> Iterator[Row]:
    """Yield cell, environments, and milliseconds of loop, engine and the engine's products alone.

    The loop is the engine "reference": the layers step by step, with the state cleared where
    episodes start. The times of a row are measured in turns.

    Raises:
        ValueError: If the gradients of loop and engine differ.
    """
    for name, make in CELLS.items():
        for num_envs in NUM_ENVS:
            torch.manual_seed(0)
            rnn = make(NUM_INPUTS, hidden_size)
            x = torch.randn(NUM_STEPS, num_envs, NUM_INPUTS)
            starts = torch.rand(NUM_STEPS, num_envs) < DONE_RATE
            loop, engine = (
                partial(_gradient, rnn, x, starts, engine) for engine in ("reference", "compiled")
            )
            with unchanged_weights():
                _check_equal(name, loop(), engine())
                times = _in_turns([loop, engine, _products(rnn, num_envs)])
            yield name, num_envs, times


def _gradient(
    rnn: RecurrentLayers, x: torch.Tensor, starts: torch.Tensor, engine: str
) -> tuple[torch.Tensor, ...]:
    outputs, _ = recurrent_scan(rnn, x, None, starts, engine)
    return torch.autograd.grad(outputs.square().mean(), list(rnn.parameters()))


def _check_equal(name: str, want: tuple[torch.Tensor, ...], got: tuple[torch.Tensor, ...]) -> None:
    for one, other in zip(got, want, strict=True):
        error = (one - other).norm() / other.norm()
        if not error < 1e-4:
            raise ValueError(f"The gradients of {name} differ by {error:.1e}, expected below 1e-4.")


def _products(rnn: RecurrentLayers, num_envs: int) -> Callable[[], object]:
    """Return a function that does the products of the engine: steps, their gradients, weights."""
    w_ih, w_hh = (weight.detach() for weight in rnn.all_weights[0][:2])
    rows = torch.randn(num_envs, w_ih.shape[1] + w_hh.shape[1])
    gates = torch.randn(num_envs, len(w_hh))
    factors = torch.randn(rows.shape[1], len(w_hh)), w_hh
    forward, backward = (step_product(num_envs, torch.float32, factor) for factor in factors)
    all_rows, all_gates = rows.repeat(NUM_STEPS, 1), gates.repeat(NUM_STEPS, 1)
    outs = torch.empty_like(gates), torch.empty(num_envs, w_hh.shape[1])

    def run() -> None:
        for _ in range(NUM_STEPS):
            for left, out, product in ((rows, outs[0], forward), (gates, outs[1], backward)):
                multiply_by, others, takes_out = product
                multiply_by(left, *others, **({"out": out} if takes_out else {}))
        multiply_columns(all_gates, all_rows)

    return run


def _in_turns(runs: list[Callable[[], object]]) -> list[float]:
    """Return the fastest of each run in milliseconds."""
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[-1]) < 3:
        for run, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            own.append(1e3 * (time.perf_counter() - start))
    return [min(own) for own in times]
