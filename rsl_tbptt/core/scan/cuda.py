"""The CUDA engine: per step one product and one of torch's fused cell kernels, in CUDA graphs.

Per layer the input projection of all steps is one product before the loop, and the gradients of
the weights are one product each after it. The state is cleared by selection with each step's mask,
so the host never waits for the device and the work depends on shapes alone. Both passes are
recorded once per shape as CUDA graphs; a replay launches the whole window at once.

The kernels are those behind ``nn.LSTMCell`` and ``nn.GRUCell`` (torch's aten/src/ATen/native/cuda/
RNN.cu). For each step they keep the activated gates i, f, g, o (LSTM), or r, z, n, the state before
the step and the hidden part of n's input (GRU).

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

Shapes: T steps, N environments, D inputs, H hidden; G = 4H (LSTM) or 3H (GRU).
"""

import contextlib
import functools
import gc
import itertools
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, detach
from rsl_tbptt.core.scan.layers import (
    ONCE,
    Tensors,
    products_as_in_layers,
    scan_layers,
    tf32_in_layers,
)

Gradients = tuple[torch.Tensor | None, ...]

Outputs = TypeVar("Outputs")

Kept = tuple[Tensors, ...]
"""Tensors that the backward pass needs: for each kind of tensor, those of all steps."""

Results = tuple[Tensors, Kept]
"""A layer's results (outputs (T, N, H) and, for an LSTM, the last cell state (N, H)) and the kept
tensors. The two share no memory."""

_NUM_WARM_UPS = 2
"""Runs before a capture: they load kernels and allocate the workspace of products."""

_MAX_RECORDINGS = 32
"""Recordings that are kept, each with the memory of its window: enough for two models of two
layers, with and without gradients, for windows of four shapes."""

_MAX_SIZES = 8
"""Numbers of environments that otherwise equal windows are recorded for. A few occur in every
update; a full replay buffer of frames gives another number in each."""

_MM_TAKES_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()
"""Whether this version of torch can give a product in another dtype than its operands."""


def scan(
    rnn: nn.RNNBase,
    inputs: torch.Tensor,
    state: HiddenState,
    episode_starts: torch.Tensor,
    cuts: tuple[int, ...],
) -> tuple[torch.Tensor, HiddenState]:
    """Run the layers over inputs (T, N, D), from cut to cut; all as in ``recurrent_scan``."""
    outputs = []
    for first, stop in itertools.pairwise((0, *cuts, len(inputs))):
        scan_layer = functools.partial(_scan_layer, PASSES[rnn.mode], episode_starts[first:stop])
        state = detach(state) if first else state
        output, state = scan_layers(rnn, inputs[first:stop], state, scan_layer)
        outputs.append(output)
    return torch.cat(outputs) if cuts else outputs[0], state


def _scan_layer(
    passes: "Passes",
    episode_starts: torch.Tensor,
    operand_dtype: torch.dtype,
    *layer: torch.Tensor,
) -> Tensors:
    """Scan one layer, by a replay if there is a recording; see ``LayerScan``."""
    tensors = (*layer, episode_starts)
    needs = tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors)
    loan = _pool.lend(passes, tensors, needs, operand_dtype)
    if any(needs):
        results: Tensors = CellScan.apply(passes, loan, operand_dtype, needs, *tensors)
    elif loan is not None:
        results = loan.recording.forward(tensors)
    else:
        results, _ = passes.forward(tensors, False, operand_dtype)
    return results


class CellScan(torch.autograd.Function):
    """Differentiable scan of one layer; its backward pass may run once."""

    @staticmethod
    def forward(
        ctx: Any,
        passes: "Passes",
        loan: "Loan | None",
        operand_dtype: torch.dtype,
        needs: tuple[bool, ...],
        *tensors: torch.Tensor,
    ) -> Tensors:
        """Return a layer's results: (T, N, H) and, for an LSTM, (N, H)."""
        ctx.call = passes.backward, needs, operand_dtype
        if loan is not None:
            ctx.kept = loan
            return loan.recording.forward(tensors)
        results, ctx.kept = passes.forward(tensors, True, operand_dtype)
        ctx.save_for_backward(*tensors)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        """Return the gradients of the layer's tensors, in their shapes.

        Raises:
            RuntimeError: If it ran before, or under ``create_graph=True``.
        """
        if ctx.kept is None or torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        kept, ctx.kept = ctx.kept, None
        if isinstance(kept, Loan):
            gradients = kept.recording.backward(grads)
        else:
            backward, needs, operand_dtype = ctx.call
            with torch.autocast(grads[0].device.type, enabled=False):
                gradients = backward(ctx.saved_tensors, kept, grads, needs, operand_dtype)
        return None, None, None, None, *gradients


class Passes(NamedTuple):
    """The passes of one layer over a window, as functions of tensors alone.

    The tensors are those of a layer (see ``LayerScan``) and episode starts (T, N).
    """

    forward: Callable[[Tensors, bool, torch.dtype], Results]
    """Maps a layer's tensors, whether a backward pass will follow, and the operand dtype to its
    results."""

    backward: Callable[[Tensors, Kept, Tensors, tuple[bool, ...], torch.dtype], Gradients]
    """Maps a layer's tensors, the tensors that ``forward`` kept, the gradients of the results, the
    flags of needed gradients and the operand dtype to the gradients of the layer's tensors."""


@products_as_in_layers()
def _lstm_forward(tensors: Tensors, keep: bool, dtype: torch.dtype) -> Results:
    x_TND, h, c, w_ih, w_hh, b_ih, b_hh, starts_TN = tensors
    fused_cell = torch.ops.aten._thnn_fused_lstm_cell
    weights, zero = w_hh.to(dtype).t(), h.new_zeros(())
    steps, outputs = [], []
    for of_x, mask in zip(_project(x_TND, w_ih, dtype), starts_TN.unsqueeze(-1), strict=True):
        h_in, c_in = torch.where(mask, zero, h).to(dtype), torch.where(mask, zero, c)
        h, c, gates = fused_cell(of_x, _product(h_in, weights, c.dtype), c_in, b_ih, b_hh)
        outputs.append(h)
        if keep:
            steps.append((h_in, c_in, c, gates))
    return (torch.stack(outputs), c.clone()), tuple(zip(*steps, strict=True))


@products_as_in_layers()
def _lstm_backward(
    tensors: Tensors, kept: Kept, grads: Tensors, needs: tuple[bool, ...], dtype: torch.dtype
) -> Gradients:
    x_TND, _, _, w_ih, w_hh, *_, starts_TN = tensors
    fused_cell = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
    num_steps, weights, zero = len(starts_TN), w_hh.to(dtype), w_hh.new_zeros(())
    h_in, c_in, c, gates = kept
    masks, grad_outputs, dc = starts_TN.unsqueeze(-1), grads[0].contiguous(), grads[1].contiguous()
    dh, of_gates = grad_outputs[-1], []
    for t in reversed(range(num_steps)):
        of_step, dc, _ = fused_cell(dh, dc, c_in[t], c[t], gates[t], False)
        of_gates.append(of_step.to(dtype))
        dc = torch.where(masks[t], zero, dc)
        if t > 0 or needs[1]:
            dh = torch.where(masks[t], zero, _product(of_gates[-1], weights, dc.dtype))
        if t > 0:
            dh.add_(grad_outputs[t - 1])
    flat = torch.cat(of_gates[::-1])
    of_rest = _rest_of_backward(x_TND, h_in, w_ih, flat, flat, (needs[0], *needs[3:7]), dtype)
    state = (dh if needs[1] else None, dc if needs[2] else None)
    return of_rest[0], *state, *of_rest[1:], None


@products_as_in_layers()
def _gru_forward(tensors: Tensors, keep: bool, dtype: torch.dtype) -> Results:
    x_TND, h, w_ih, w_hh, b_ih, b_hh, starts_TN = tensors
    fused_cell = torch.ops.aten._thnn_fused_gru_cell
    weights, zero = w_hh.to(dtype).t(), h.new_zeros(())
    steps, outputs = [], []
    for of_x, mask in zip(_project(x_TND, w_ih, dtype), starts_TN.unsqueeze(-1), strict=True):
        h_in = torch.where(mask, zero, h)
        operand = h_in.to(dtype)
        h, gates = fused_cell(of_x, _product(operand, weights, h.dtype), h_in, b_ih, b_hh)
        outputs.append(h)
        if keep:
            steps.append((operand, gates))
    return (torch.stack(outputs),), tuple(zip(*steps, strict=True))


@products_as_in_layers()
def _gru_backward(
    tensors: Tensors, kept: Kept, grads: Tensors, needs: tuple[bool, ...], dtype: torch.dtype
) -> Gradients:
    x_TND, _, w_ih, w_hh, *_, starts_TN = tensors
    fused_cell = torch.ops.aten._thnn_fused_gru_cell_backward
    num_steps, weights, zero = len(starts_TN), w_hh.to(dtype), w_hh.new_zeros(())
    h_in, gates = kept
    masks, grad_outputs = starts_TN.unsqueeze(-1), grads[0].contiguous()
    dh, of_x, of_h = grad_outputs[-1], [], []
    for t in reversed(range(num_steps)):
        of_x_step, of_h_step, direct, *_ = fused_cell(dh, gates[t], False)
        of_x.append(of_x_step.to(dtype))
        of_h.append(of_h_step.to(dtype))
        if t > 0 or needs[1]:
            through_gates = _product(of_h[-1], weights, direct.dtype)
            dh = torch.where(masks[t], zero, through_gates.add_(direct))
        if t > 0:
            dh.add_(grad_outputs[t - 1])
    flat_x, flat_h = torch.cat(of_x[::-1]), torch.cat(of_h[::-1])
    of_rest = _rest_of_backward(x_TND, h_in, w_ih, flat_x, flat_h, (needs[0], *needs[2:6]), dtype)
    return of_rest[0], dh if needs[1] else None, *of_rest[1:], None


def _rest_of_backward(
    x_TND: torch.Tensor,
    h_in: Tensors,
    w_ih: torch.Tensor,
    of_x: torch.Tensor,
    of_h: torch.Tensor,
    needs: tuple[bool, ...],
    dtype: torch.dtype,
) -> Gradients:
    """Return the gradients of x, w_ih, w_hh, b_ih and b_hh: one product or sum each.

    Args:
        x_TND: Inputs.
        h_in: Cleared hidden states of the steps, shape (N, H) each.
        w_ih: Input weights, shape (G, D).
        of_x: Gradients of the gates' inputs from x, shape (T * N, G).
        of_h: Gradients of the gates' inputs from h, shape (T * N, G); may be ``of_x``.
        needs: Which of the gradients are needed.
        dtype: Dtype of the operands of products.
    """
    full, flat_x = w_ih.dtype, x_TND.flatten(0, 1)
    dx = dw_ih = dw_hh = db_ih = db_hh = None
    if needs[0]:
        dx = _product(of_x, w_ih.to(dtype), full).view_as(x_TND)
    if needs[1]:
        dw_ih = _product(of_x.t(), flat_x.to(dtype), full)
    if needs[2]:
        dw_hh = _product(of_h.t(), torch.cat(h_in), full)
    if needs[3]:
        db_ih = of_x.sum(0, dtype=full)
    if needs[4]:
        db_hh = db_ih if of_h is of_x and db_ih is not None else of_h.sum(0, dtype=full)
    return dx, dw_ih, dw_hh, db_ih, db_hh


PASSES = {
    "LSTM": Passes(_lstm_forward, _lstm_backward),
    "GRU": Passes(_gru_forward, _gru_backward),
}
"""Passes by ``nn.RNNBase.mode``."""


def _project(x_TND: torch.Tensor, w_ih: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the input projection of all steps, shape (T, N, G)."""
    of_x = _product(x_TND.flatten(0, 1).to(dtype), w_ih.to(dtype).t(), x_TND.dtype)
    return of_x.unflatten(0, x_TND.shape[:2])


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``a @ b`` in ``dtype``, without rounding to the operands' dtype if torch can.

    Shapes: ``a`` is (N, D), ``b`` (D, G), the product (N, G).
    """
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32 and _MM_TAKES_OUT_DTYPE:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


class Recording:
    """The recorded passes of one layer over a window of one shape; it owns their tensors."""

    def __init__(
        self,
        pool: "Pool",
        passes: Passes,
        tensors: Tensors,
        needs: tuple[bool, ...],
        operand_dtype: torch.dtype,
    ) -> None:
        """Record the forward pass and, if a gradient is needed, the backward pass.

        Both share private memory: a replay of one may overwrite the gradients and what the other
        has freed, but no result and nothing that is kept.
        """
        device, dense = tensors[0].device, torch.contiguous_format
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = tuple(torch.empty_like(t, memory_format=dense) for t in tensors)
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
        """Return the layer's gradients, given those of the last ``forward``'s results."""
        _copy(grads, self._grads)
        self._backward()
        return tuple(None if g is None else g.clone() for g in self._gradients)


class Loan:
    """Gives one scan a recording, which is free again once nobody holds this object."""

    def __init__(self, recording: Recording, free: list[Recording]) -> None:
        """Hold ``recording``, which returns to ``free`` at the end."""
        self.recording = recording
        weakref.finalize(self, free.append, recording).atexit = False


class Pool:
    """Cached recordings by the shapes they were made for; each is free or in use by one scan.

    It keeps every captured graph and captures on its own stream. In torch after 2.12, destroying a
    graph also destroys the workspace that the products of all graphs of its capture stream write to
    (pytorch issue 193402). So graphs are destroyed together, with their pool.
    """

    def __init__(self, max_recordings: int = _MAX_RECORDINGS, depth: int = 0) -> None:
        """Start without recordings.

        Args:
            max_recordings: Most recordings that are made.
            depth: Number of pools that this one temporarily replaces.
        """
        self.depth = depth
        self.graphs: list[Any] = []
        """All captured graphs, including those of recordings that failed."""
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
        """Return a free or new recording, or None if the layer has to run without one.

        It is None while the caller captures a graph, and if no more recordings are made: there are
        enough of them or one could not be made. A warning says so.
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
                self._max_recordings = 0
                # After a broken capture, ending it fails as well: the context has the first error.
                causes = " after ".join(map(str, filter(None, (error, error.__context__))))
                self._say(f"one could not be recorded ({causes})")
            else:
                sizes.setdefault(num_envs, []).append(recording)
                self._num_made += 1
        free = sizes.get(num_envs)
        return Loan(free.pop(), free) if free else None

    def _may_record(self, sizes: dict[int, list[Recording]], num_envs: int) -> bool:
        """Return whether one more recording may be made; warn if not."""
        if self._num_made >= self._max_recordings:
            if self._max_recordings:
                self._say(f"{self._num_made} are kept")
            return False
        if num_envs not in sizes and len(sizes) == _MAX_SIZES:
            self._say(f"windows of this kind are kept for {_MAX_SIZES} numbers of environments")
            return False
        return True

    def _say(self, reason: str) -> None:
        """Warn once for each reason."""
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(
                f"CUDA graphs of more window shapes are not recorded: {reason}. Existing recordings"
                " are replayed; other windows run step by step, with the same result.",
                stacklevel=2,
            )


_pool = Pool()


@contextlib.contextmanager
def recordings_aside() -> Iterator[None]:
    """Start without recordings and drop those made here; the existing ones return afterwards."""
    global _pool
    kept, _pool = _pool, Pool(depth=_pool.depth + 1)
    try:
        yield
    finally:
        _pool = kept


def record(
    function: Callable[[], Outputs],
    device: torch.device,
    pool: Pool,
    before: torch.cuda.CUDAGraph | None = None,
) -> tuple[torch.cuda.CUDAGraph, Outputs]:
    """Record the work that ``function`` launches on a CUDA device.

    Args:
        function: Reads and writes tensors at fixed addresses, and does not synchronise.
        device: The device.
        pool: Keeps the graph.
        before: A graph that always runs before this one; they share its private memory.

    Returns:
        The graph, whose ``replay`` repeats that work on the current stream, and the outputs of
        ``function``, which each replay overwrites.
    """
    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        aside = _side_stream(device, current.cuda_stream, pool.depth)
        aside.wait_stream(current)
        # Set here as well: if ending the capture fails, torch leaves its stream current.
        with torch.cuda.stream(aside), _no_garbage_collected():
            for _ in range(_NUM_WARM_UPS):
                function()
            current.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            pool.graphs.append(graph)
            # "thread_local": other threads of a simulator may call CUDA meanwhile.
            with torch.cuda.graph(
                graph,
                pool=None if before is None else before.pool(),
                stream=aside,
                capture_error_mode="thread_local",
            ):
                outputs = function()
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
def _side_stream(device: torch.device, current: int, depth: int) -> torch.cuda.Stream:
    """Return the stream to record on, for a current stream and a depth of pools."""
    return torch.cuda.Stream(device)


def _situation(device: torch.device) -> Hashable | None:
    """Return what a recording depends on besides its tensors, or None if none can be made."""
    if device.type != "cuda":
        return (device,)
    if torch.cuda.is_current_stream_capturing():
        return None
    return device, torch.cuda.current_stream(device).cuda_stream, tf32_in_layers()


def _copy(sources: Tensors, targets: Tensors) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
