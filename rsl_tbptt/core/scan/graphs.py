"""CUDA graphs of a layer's passes: recorded once per shape, replayed as one launch per window.

A replay reads the memory it was recorded with and overwrites the results of the replay before. So a
recording owns its tensors and shares them with nobody:

- Inputs are copied in, including weights. A recording that read a model's own weights would belong
  to one model and break when these move; weights are small next to the rest of a window.
- Results and gradients are returned as copies.
- What the forward pass keeps stays inside until the backward pass. Meanwhile only that scan uses
  the recording: layers, actor and critic, and micro-batches alive at once have one each. It is free
  again after the backward pass, or once autograd drops the scan.

Recordings belong to one CUDA stream, on which a replay follows all earlier readers of its tensors.
If none can be made, the passes run step by step with the same result.
"""

import contextlib
import functools
import gc
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from rsl_tbptt.core.scan.layers import Gradients, Tensors, tf32_in_layers

if TYPE_CHECKING:
    from rsl_tbptt.core.scan.triton import Passes

_NUM_WARM_UPS = 2
"""Runs before a capture: they compile and load kernels and allocate the workspace of products."""

_SHARE = 0.25
"""Part of the device's memory at which recordings are no longer made."""

_MAX_SIZES = 8
"""Numbers of environments that otherwise equal windows are recorded for. A few occur in every
update; a full replay buffer of frames gives another number in each."""


class Recording:
    """The recorded passes of one layer over a window of one shape; it owns their tensors."""

    def __init__(self, cache: "CachedGraphs", passes: "Passes", tensors: Tensors) -> None:
        """Record the forward pass and, if a gradient is needed, the backward pass.

        Both share private memory: a replay of one may overwrite the gradients and what the other
        has freed, but no result and nothing that is kept.
        """
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = tuple(tensor.new_empty(tensor.shape) for tensor in tensors)
            torch._foreach_copy_(self._inputs, tensors)
            forward = functools.partial(passes.forward, self._inputs)
            graph, (self._results, kept) = record(forward, cache)
            self._forward, self._grads = graph.replay, ()
            if any(passes.needs):
                self._grads = tuple(torch.zeros_like(result) for result in self._results)
                backward = functools.partial(passes.backward, self._inputs, kept, self._grads)
                graph, self._gradients = record(backward, cache, graph)
                self._backward = graph.replay
            cache.num_bytes += sum(tensor.nbytes for tensor in (*self._inputs, *self._grads))

    def forward(self, tensors: Tensors) -> Tensors:
        """Return the results for a layer's tensors."""
        torch._foreach_copy_(self._inputs, tensors)
        self._forward()
        return tuple(result.clone() for result in self._results)

    def backward(self, grads: Tensors) -> Gradients:
        """Return the layer's gradients, given those of the last ``forward``'s results."""
        torch._foreach_copy_(self._grads, grads)
        self._backward()
        return tuple(None if g is None else g.clone() for g in self._gradients)


class InUse:
    """Gives one scan a recording, which is free again once nobody holds this object."""

    def __init__(self, recording: Recording, free: list[Recording]) -> None:
        """Hold ``recording``, which returns to ``free`` at the end."""
        self.recording = recording
        weakref.finalize(self, free.append, recording).atexit = False


class CachedGraphs:
    """Cached recordings by the shapes they were made for; each is free or in use by one scan.

    It keeps every captured graph and captures on its own stream. In torch after 2.12, destroying a
    graph also destroys the workspace that the products of all graphs of its capture stream write to
    (pytorch issue 193402). So graphs are destroyed together, with their cache.
    """

    def __init__(self, depth: int = 0) -> None:
        """Start without recordings; ``depth`` is the number of caches that this one replaces."""
        self.depth = depth
        self.num_bytes = 0
        """Memory of all recordings."""
        self.graphs: list[Any] = []
        """All captured graphs, including those of recordings that failed."""
        self._free: dict[Hashable, dict[int, list[Recording]]] = defaultdict(dict)
        self._failed = False
        self._said: set[str] = set()

    def take(self, passes: "Passes", tensors: Tensors) -> InUse | None:
        """Return a free or new recording, or None if the layer has to run without one.

        It is None while the caller captures a graph, and if no more recordings are made: they take
        enough memory, or one could not be made. A warning says so, once for each reason.
        """
        situation = situation_of(tensors[0].device)
        if situation is None:
            return None
        num_steps, num_envs, _ = tensors[0].shape
        weights = tuple((tensor.shape, tensor.dtype) for tensor in tensors[-6:-2])
        sizes = self._free[passes, num_steps, weights, situation]
        if not sizes.get(num_envs) and not self._failed:
            reason = self._record(sizes, passes, tensors)
            if reason is not None and reason not in self._said:
                self._said.add(reason)
                warnings.warn(
                    f"CUDA graphs of more window shapes are not recorded: {reason}. Existing"
                    " recordings are replayed; other windows run step by step, with the same"
                    " result.",
                    stacklevel=2,
                )
        free = sizes.get(num_envs)
        return InUse(free.pop(), free) if free else None

    def _record(
        self, sizes: dict[int, list[Recording]], passes: "Passes", tensors: Tensors
    ) -> str | None:
        """Make one more recording, or return the reason why not."""
        num_envs = tensors[0].shape[1]
        if self.num_bytes >= max_bytes(tensors[0].device):
            return f"they take {self.num_bytes / 1e9:.3g} GB, {_SHARE:.0%} of the device's memory"
        if num_envs not in sizes and len(sizes) == _MAX_SIZES:
            return f"windows of this kind are kept for {_MAX_SIZES} numbers of environments"
        try:
            recording = Recording(self, passes, tensors)
        except RuntimeError as error:  # out of memory is one
            self._failed = True
            # After a broken capture, ending it fails as well: the context has the first error.
            causes = " after ".join(map(str, filter(None, (error, error.__context__))))
            return f"one could not be recorded ({causes})"
        sizes.setdefault(num_envs, []).append(recording)
        return None


cached_graphs = CachedGraphs()
"""The recordings of this process."""


@contextlib.contextmanager
def recordings_aside() -> Iterator[None]:
    """Start without recordings and drop those made here; the existing ones return afterwards."""
    global cached_graphs
    kept, cached_graphs = cached_graphs, CachedGraphs(cached_graphs.depth + 1)
    try:
        yield
    finally:
        cached_graphs = kept


def record(
    function: Callable[[], Any], cache: CachedGraphs, before: torch.cuda.CUDAGraph | None = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Record the work that ``function`` launches on the current CUDA device.

    Args:
        function: Reads and writes tensors at fixed addresses, and does not synchronise.
        cache: Keeps the graph and counts the memory that it reserves.
        before: A graph that always runs before this one; they share its private memory.

    Returns:
        The graph, whose ``replay`` repeats that work on the current stream, and the outputs of
        ``function``, which each replay overwrites.
    """
    current = torch.cuda.current_stream()
    aside = _side_stream(current, cache.depth)
    aside.wait_stream(current)
    # Set here as well: if ending the capture fails, torch leaves its stream current.
    with torch.cuda.stream(aside), _no_garbage_collected():
        for _ in range(_NUM_WARM_UPS):
            function()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        cache.graphs.append(graph)
        memory = None if before is None else before.pool()
        # "thread_local": other threads of a simulator may call CUDA meanwhile.
        with torch.cuda.graph(graph, memory, aside, capture_error_mode="thread_local"):
            reserved = torch.cuda.memory_reserved()  # a capture's memory is its own
            outputs = function()
            cache.num_bytes += torch.cuda.memory_reserved() - reserved
    return graph, outputs


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Pause Python's collector: freeing a simulator's arrays calls CUDA and breaks a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def _side_stream(current: torch.cuda.Stream, depth: int) -> torch.cuda.Stream:
    """Return the stream to record on, for a current stream and a depth of caches."""
    return torch.cuda.Stream(current.device)


def max_bytes(device: torch.device) -> float:
    """Return how much memory recordings may take before no more are made."""
    return _SHARE * torch.cuda.get_device_properties(device).total_memory


def situation_of(device: torch.device) -> Hashable | None:
    """Return what a recording depends on besides its tensors, or None if none can be made."""
    if torch.cuda.is_current_stream_capturing():
        return None
    return device, torch.cuda.current_stream(device).cuda_stream, tf32_in_layers()
