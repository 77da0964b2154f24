"""CUDA: the passes of ``cells.py``, recorded once per shape as CUDA graphs and replayed.

A replay launches the whole window at once, reads the memory it was recorded with and overwrites
the results of the replay before. So a recording owns its tensors, and nobody else holds them:

- Inputs, weights among them, are copied in. A recording that read a model's own weights would
  belong to one model and break when these move; they are small beside what a window moves.
- Results and gradients are handed out as copies.
- What the forward pass keeps stays inside until the backward pass. Meanwhile the recording is lent
  to that scan alone: layers, actor and critic, and micro-batches alive at once have one each. It is
  free again after the backward pass, or once autograd forgets the scan.

Recordings are for one CUDA stream, on which a replay follows all earlier readers of its tensors.
"""

import contextlib
import functools
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import torch

from rsl_tbptt.core.scan.cuda import cells
from rsl_tbptt.core.scan.cuda.cells import PASSES, Gradients, Passes, needed_gradients, take_kept
from rsl_tbptt.core.scan.layers import LayerScan, Tensors
from rsl_tbptt.core.scan.precision import tf32_in_layers

Outputs = TypeVar("Outputs")

_NUM_WARM_UPS = 2
"""Runs before a capture: they load kernels and allocate the workspace of products."""

_MAX_RECORDINGS = 32
"""Recordings that are kept, each with the memory of its window: two models of two layers, with and
without gradients, for windows of four shapes."""


def _scan_layer(
    passes: Passes,
    inputs: torch.Tensor,
    state: Tensors,
    weights: Tensors,
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
) -> tuple[torch.Tensor, Tensors]:
    """Scan one layer by a replay, or without one where there can be none."""
    tensors = (inputs, *state, *weights, episode_starts)
    needs = needed_gradients(tensors)
    loan = _pool.lend(passes, tensors, needs, operand_dtype)
    if loan is None:
        return cells.scan_layer(passes, inputs, state, weights, episode_starts, operand_dtype)
    if any(needs):
        outputs, *last_cell = GraphScan.apply(loan, *tensors)
    else:
        outputs, *last_cell = loan.recording.forward(tensors)
    return outputs, (outputs[-1], *last_cell)


class GraphScan(torch.autograd.Function):
    """Differentiable scan of one layer by replays; its backward pass may run once."""

    @staticmethod
    def forward(
        ctx: Any,
        loan: "Loan",
        *tensors: torch.Tensor,
    ) -> Tensors:
        """Return the layer's results: (T, N, H) and, for an LSTM, (N, H)."""
        ctx.kept = loan
        return loan.recording.forward(tensors)

    @staticmethod
    def backward(
        ctx: Any,
        *grads: torch.Tensor,
    ) -> Gradients:
        """Return the gradients of the layer's tensors, in their shapes."""
        loan = take_kept(ctx)
        return None, *loan.recording.backward(grads)


class Recording:
    """The passes of one layer over a window of one shape, on tensors of its own."""

    def __init__(
        self, passes: Passes, tensors: Tensors, needs: tuple[bool, ...], operand_dtype: torch.dtype
    ) -> None:
        """Record the forward pass and, where a gradient is needed, the backward pass."""
        device = tensors[0].device
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = tuple(torch.empty_like(t, memory_format=_DENSE) for t in tensors)
            _copy(tensors, self._inputs)
            forward = functools.partial(passes.forward, self._inputs, any(needs), operand_dtype)
            self._forward, (self._results, self._kept) = record(forward, device)
            if any(needs):
                self._grads = tuple(torch.zeros_like(result) for result in self._results)
                arguments = (self._inputs, self._kept, self._grads, needs, operand_dtype)
                backward = functools.partial(passes.backward, *arguments)
                self._backward, self._gradients = record(backward, device)

    def forward(self, tensors: Tensors) -> Tensors:
        """Return the results for a layer's tensors."""
        _copy(tensors, self._inputs)
        self._forward()
        return tuple(result.clone() for result in self._results)

    def backward(self, grads: Tensors) -> Gradients:
        """Return the gradients that follow from those of the last ``forward``'s results."""
        _copy(grads, self._grads)
        self._backward()
        return tuple(None if g is None else g.clone() for g in self._gradients)


class Loan:
    """A recording in the hands of one scan; it goes back when nobody holds the loan any more."""

    def __init__(self, recording: Recording, free: list[Recording]) -> None:
        """Lend ``recording``, which goes back into ``free``."""
        self.recording = recording
        weakref.finalize(self, free.append, recording).atexit = False


class Pool:
    """Recordings by what they were made for; each is free or lent to one scan."""

    def __init__(self, max_recordings: int = _MAX_RECORDINGS, works: bool = False) -> None:
        """Start without any.

        Args:
            max_recordings: How many are made at most.
            works: Whether this device is known to record.
        """
        self.works = works
        self._free: dict[Hashable, list[Recording]] = defaultdict(list)
        self._num_made, self._max_recordings = 0, max_recordings

    def lend(
        self,
        passes: Passes,
        tensors: Tensors,
        needs: tuple[bool, ...],
        operand_dtype: torch.dtype,
    ) -> Loan | None:
        """Return a free or new recording, or None where the layer has to run without one.

        That is while the caller captures a graph himself, and once no further recording is made
        because there are enough or one could not be made, which is said in a warning.

        Raises:
            RuntimeError: If the very first recording cannot be made.
        """
        situation = _situation(tensors[0].device)
        if situation is None:
            return None
        shapes = tuple(tensor.shape for tensor in tensors)
        free = self._free[passes, shapes, tensors[0].dtype, needs, operand_dtype, situation]
        if not free and self._num_made < self._max_recordings:
            try:
                free.append(Recording(passes, tensors, needs, operand_dtype))
                self._num_made += 1
                self.works = True
            except RuntimeError as error:  # out of memory is one
                if not self.works:
                    raise
                self._stop(f"one could not be recorded ({error})")
            else:
                if self._num_made == self._max_recordings:
                    self._stop(f"{self._num_made} are kept")
        return Loan(free.pop(), free) if free else None

    def _stop(self, reason: str) -> None:
        self._max_recordings = 0
        warnings.warn(
            f"CUDA graphs of further window shapes are not recorded: {reason}. Those recorded are"
            " replayed; other windows run step by step, with the same result.",
            stacklevel=2,
        )


@contextlib.contextmanager
def recordings_aside() -> Iterator[None]:
    """Begin without recordings, and drop those made meanwhile: the others stay as they are."""
    global _pool
    kept, _pool = _pool, Pool(works=_pool.works)
    try:
        yield
    finally:
        kept.works, _pool = _pool.works, kept


def record(
    function: Callable[[], Outputs], device: torch.device
) -> tuple[Callable[[], None], Outputs]:
    """Record the work that ``function`` gives to a CUDA device.

    Args:
        function: Reads and writes tensors that stay where they are, and waits for nothing.
        device: The device.

    Returns:
        What does that work again on the current stream, and the outputs of ``function``, which it
        overwrites.
    """
    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        aside = _side_stream(device, current.cuda_stream)
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(_NUM_WARM_UPS):
                function()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": a simulator's other threads may call CUDA meanwhile.
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            outputs = function()
    return graph.replay, outputs


@functools.cache
def _side_stream(device: torch.device, current: int) -> torch.cuda.Stream:
    """Return the stream to record on for a current one: products share a workspace per stream."""
    return torch.cuda.Stream(device)


def _situation(device: torch.device) -> Hashable | None:
    """Return what a recording on ``device`` depends on beside its tensors, None to make none."""
    if device.type != "cuda":
        return (device,)
    if torch.cuda.is_current_stream_capturing():
        return None
    return device, torch.cuda.current_stream(device).cuda_stream, tf32_in_layers()


def _copy(sources: Tensors, targets: Tensors) -> None:
    """Copy tensors into a recording's own."""
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


_DENSE = torch.contiguous_format

_pool = Pool()

LAYERS: dict[str, LayerScan] = {
    name: functools.partial(_scan_layer, passes) for name, passes in PASSES.items()
}
"""Scans of one layer, by the name of its cell."""
