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
A pool of them keeps every graph that was captured for it, and captures on a stream of its own: in
torch after 2.12 a graph that is destroyed takes the workspace along that the products of all graphs
of its capture stream write to (pytorch issue 193402). So graphs go together, with their pool.
"""

import contextlib
import functools
import gc
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves

from rsl_tbptt.core.scan.cuda import cells
from rsl_tbptt.core.scan.cuda.cells import PASSES, Gradients, Passes, needed_gradients, take_kept
from rsl_tbptt.core.scan.layers import LayerScan, Tensors, tf32_in_layers

Outputs = TypeVar("Outputs")

_NUM_WARM_UPS = 2
"""Runs before a capture: they load kernels and allocate the workspace of products."""

_MAX_RECORDINGS = 32
"""Recordings that are kept, each with the memory of its window: two models of two layers, with and
without gradients, for windows of four shapes."""

_MAX_SIZES = 8
"""Numbers of environments for which windows that are alike otherwise are recorded. A few occur in
every update; a replay buffer that is full of frames has another one in each."""


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
        self,
        pool: "Pool",
        passes: Passes,
        tensors: Tensors,
        needs: tuple[bool, ...],
        operand_dtype: torch.dtype,
    ) -> None:
        """Record the forward pass and, where a gradient is needed, the backward pass.

        They share private memory: a replay of either may overwrite what the other has freed and
        the gradients, but no result and nothing that is kept.
        """
        device = tensors[0].device
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = tuple(torch.empty_like(t, memory_format=_DENSE) for t in tensors)
            _copy(tensors, self._inputs)
            forward = functools.partial(passes.forward, self._inputs, any(needs), operand_dtype)
            graph, (self._results, self._kept) = record(forward, device, pool)
            self._forward = graph.replay
            if any(needs):
                self._grads = tuple(torch.zeros_like(result) for result in self._results)
                arguments = (self._inputs, self._kept, self._grads, needs, operand_dtype)
                backward = functools.partial(passes.backward, *arguments)
                graph, self._gradients = record(backward, device, pool, graph)
                self._backward = graph.replay

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

    def __init__(
        self, max_recordings: int = _MAX_RECORDINGS, works: bool = False, depth: int = 0
    ) -> None:
        """Start without any.

        Args:
            max_recordings: How many are made at most.
            works: Whether this device is known to record.
            depth: Pools that it stands in for meanwhile.
        """
        self.works, self.depth = works, depth
        self.graphs: list[Any] = []
        """All graphs that were captured, also of recordings that failed."""
        self.bytes_beyond_tensors = 0
        """What the private memory of graphs holds beside the tensors of recordings."""
        self._free: dict[Hashable, dict[int, list[Recording]]] = defaultdict(dict)
        self._num_made, self._max_recordings = 0, max_recordings
        self._said: set[str] = set()

    def lend(
        self,
        passes: Passes,
        tensors: Tensors,
        needs: tuple[bool, ...],
        operand_dtype: torch.dtype,
    ) -> Loan | None:
        """Return a free or new recording, or None where the layer has to run without one.

        That is while the caller captures a graph himself, and where no further recording is made
        because there are enough or one could not be made, which is said in a warning.

        Raises:
            RuntimeError: If the very first recording cannot be made.
        """
        situation = _situation(tensors[0].device)
        if situation is None:
            return None
        (num_steps, num_envs, _), dtype = tensors[0].shape, tensors[0].dtype
        weights = tuple(tensor.shape for tensor in tensors[-5:-1])
        sizes = self._free[passes, num_steps, weights, dtype, needs, operand_dtype, situation]
        if not sizes.get(num_envs) and self._may_record(sizes, num_envs):
            try:
                recording = Recording(self, passes, tensors, needs, operand_dtype)
            except RuntimeError as error:  # out of memory is one
                if not self.works:
                    raise
                self._max_recordings = 0
                # A capture that broke cannot be ended either: what broke it is the context.
                causes = " after ".join(map(str, filter(None, (error, error.__context__))))
                self._say(f"one could not be recorded ({causes})")
            else:
                sizes.setdefault(num_envs, []).append(recording)
                self._num_made += 1
                self.works = True
        free = sizes.get(num_envs)
        return Loan(free.pop(), free) if free else None

    def _may_record(self, sizes: dict[int, list[Recording]], num_envs: int) -> bool:
        """Return whether one more recording may be made; say why not."""
        if self._num_made >= self._max_recordings:
            if self._max_recordings:
                self._say(f"{self._num_made} are kept")
            return False
        if num_envs not in sizes and len(sizes) == _MAX_SIZES:
            self._say(f"windows alike are kept for {_MAX_SIZES} numbers of environments")
            return False
        return True

    def _say(self, reason: str) -> None:
        """Warn once for each reason."""
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(
                f"CUDA graphs of further window shapes are not recorded: {reason}. Those recorded"
                " are replayed; other windows run step by step, with the same result.",
                stacklevel=2,
            )


@contextlib.contextmanager
def recordings_aside() -> Iterator[None]:
    """Begin without recordings, and drop those made meanwhile: the others stay as they are."""
    global _pool
    kept, _pool = _pool, Pool(works=_pool.works, depth=_pool.depth + 1)
    try:
        yield
    finally:
        kept.works, _pool = _pool.works, kept


def bytes_beyond_tensors() -> int:
    """Return what the private memory of the graphs recorded holds beside recordings' tensors."""
    return _pool.bytes_beyond_tensors


def record(
    function: Callable[[], Outputs],
    device: torch.device,
    pool: Pool,
    before: torch.cuda.CUDAGraph | None = None,
) -> tuple[torch.cuda.CUDAGraph, Outputs]:
    """Record the work that ``function`` gives to a CUDA device.

    Args:
        function: Reads and writes tensors that stay where they are, and waits for nothing.
        device: The device.
        pool: Keeps the graph.
        before: A graph that always runs before this one, and whose private memory it shares.

    Returns:
        The graph, whose ``replay`` does that work again on the current stream, and the outputs of
        ``function``, which it overwrites.
    """
    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        aside = _side_stream(device, current.cuda_stream, pool.depth)
        aside.wait_stream(current)
        # Set here as well: if the capture cannot be ended, torch leaves its stream current.
        with torch.cuda.stream(aside), _no_garbage_collected():
            for _ in range(_NUM_WARM_UPS):
                function()
            current.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            pool.graphs.append(graph)
            # "thread_local": a simulator's other threads may call CUDA meanwhile.
            with torch.cuda.graph(
                graph,
                pool=None if before is None else before.pool(),
                stream=aside,
                capture_error_mode="thread_local",
            ):
                reserved = torch.cuda.memory_reserved(device)
                outputs = function()
                reserved = torch.cuda.memory_reserved(device) - reserved
    storages = [t.untyped_storage() for t in tree_leaves(outputs) if t is not None]
    of_tensors = {storage._cdata: storage.nbytes() for storage in storages}
    pool.bytes_beyond_tensors += reserved - sum(of_tensors.values())
    return graph, outputs


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Pause Python's collector: freeing a simulator's arrays calls CUDA, and breaks a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def _side_stream(device: torch.device, current: int, depth: int) -> torch.cuda.Stream:
    """Return the stream to record on for a current one and pools of that depth."""
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
