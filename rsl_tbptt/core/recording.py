"""Record a step once and replay it: on CUDA one launch instead of hundreds.

A step is a function of tensors that reads and writes other tensors at fixed addresses: parameters,
gradients, the optimiser's state, a rollout. The recorder runs it as it is on a CPU. On CUDA the
first steps of a kind warm up, then one is captured as a CUDA graph::

    recorder = Recorder(device)
    rollout = recorder.place("rollout", rollout)  # at the addresses of the last one
    recorder.follow(modules, optimizers)          # before an update: anew if a tensor has moved
    sums, state = recorder(step, indices, state, num_steps=24)

A replay reads and writes the addresses of the capture and knows its Python numbers. So everything
that outlives a step, except its results, must exist before the capture. What changes from step to
step is an argument or is written into a tensor. Arguments get no gradient. A step that is captured
runs no kernel, and if its capture fails it runs again: it must not count in Python.

All recordings use one pool of memory, in which a replay overwrites what others left behind. In
torch after 2.12, destroying a graph also destroys the workspace that the products of all graphs of
its capture stream write to (pytorch issue 193402). So graphs are destroyed together.
"""

import contextlib
import gc
import inspect
import traceback
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from rsl_tbptt.core.scan.products import operand_dtype_of, tf32_in_layers, tf32_in_products

Capture = Callable[[], AbstractContextManager[Any]]
"""Makes a context that records what runs inside it, as an object that can ``replay()`` it."""

_NUM_WARM_UPS = 2
"""Steps before a capture: they compile and load kernels, allocate the workspace of products, and
create the optimiser's state."""

_SHARE = 0.25
"""Part of the device's memory at which recordings are no longer made."""

_MAX_FORMS = 32
"""Number of forms of steps that are recorded. A few occur in every update; steps whose shapes
change all the time run as they are."""


Tree = TypeVar("Tree")

_UNFINISHED: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture did not end: torch still has their addresses, so they stay."""


class NotCapturedError(RuntimeError):
    """A CUDA graph could not be captured."""


class _Form:
    """How many steps of a form have run, and their recording with its own tensors."""

    num_runs = 0
    recording: Any = None
    arguments: Sequence[torch.Tensor] = ()
    """Copies of the arguments, which the recording reads."""
    results: Any = None
    """Tree of the results. The recording overwrites these tensors."""


class Recorder:
    """Runs steps, and replays recordings of them on a device that can record.

    Recordings are made for each form: the function and its fixed arguments, structure, shapes and
    dtypes of its tensors, autocast, the precision of products, and the current stream.
    """

    def __init__(
        self, device: torch.device | str, capture: Capture | None = None, refused: str | None = None
    ) -> None:
        """Start without recordings.

        Args:
            device: Where the steps run. Steps on a CUDA device are recorded.
            capture: Records on any device, and runs the work meanwhile. For tests.
            refused: Why steps are not to be recorded, or None.
        """
        self._device, self._capture, self._stream = torch.device(device), capture, None
        if self._device.type != "cuda":
            refused = f"device '{device}' has no CUDA graphs"
        elif capture is None and refused is None:
            self._capture, self._stream = self._cuda_graph, torch.cuda.Stream(self._device)
        self._refused = None if self._capture else refused
        self._branches: dict[int, Any] = {}
        self._running: list[torch.cuda.Stream] = []
        self._start: Any = None
        self._inside = False
        self._said: set[str] = set()
        self.traceback = ""
        """Of the last capture that failed."""
        self._followed: list[Hashable] = []
        self._placed: dict[str, tuple[Any, list[Any]]] = {}
        self.forget()

    def __call__(self, function: Callable[..., Any], *tensors: Any, **fixed: Hashable) -> Any:
        """Do the work of ``function(*tensors, **fixed)``, by a replay if it is recorded.

        Args:
            function: A step. It does not wait for the device.
            tensors: Trees of tensors and None. They get no gradient.
            fixed: Arguments that a recording is made for.

        Returns:
            The tree of tensors that ``function`` returns. No later replay overwrites it.
        """
        form = self._form_of(function, tensors, fixed)
        if form is None or self._capture is None:
            return function(*tensors, **fixed)
        if form.recording is not None:
            if form.arguments:
                torch._foreach_copy_(list(form.arguments), _tensors_of(tensors))
            form.recording.replay()
        elif form.num_runs < _NUM_WARM_UPS:
            form.num_runs += 1
            with self._aside():
                return function(*tensors, **fixed)
        else:
            arguments = _copy_of(tensors)
            try:
                with self._aside(), self._capture() as recording:
                    results = function(*arguments, **fixed)
            except NotCapturedError as error:
                self._refuse(f"a CUDA graph could not be captured ({error})")
                return function(*tensors, **fixed)
            form.recording, form.arguments = recording, _tensors_of(arguments)
            form.results = tree_map_only(torch.Tensor, torch.Tensor.detach, results)
            self.num_bytes += sum(tensor.nbytes for tensor in form.arguments)
            if self._stream is not None:  # capturing a CUDA graph runs nothing
                recording.replay()
        return _copy_of(form.results)

    def stream(self, index: int) -> AbstractContextManager[Any]:
        """Return the context of a branch of a step, which runs next to the other branches.

        Branch 0 runs on the stream of the step, any other branch on its own stream from the
        beginning of the step on. Branches share only tensors that were made before the step. Call
        ``join`` before you use their results.
        """
        if index == 0 or self._start is None:
            return contextlib.nullcontext()
        while index not in self._branches:
            made = torch.cuda.Stream(self._device)  # torch has a few, and hands them out in turn
            if made not in (self._stream, *self._branches.values()):
                self._branches[index] = made
        branch = self._branches[index]
        if branch not in self._running:
            branch.wait_event(self._start)
            self._running.append(branch)
        return torch.cuda.stream(branch)

    def join(self) -> None:
        """Let the step's stream wait for all branches."""
        _wait(self._stream, *self._running)
        self._running.clear()

    def forget(self) -> None:
        """Drop all recordings. Later steps are recorded anew, even if a capture has failed."""
        self._forms: dict[Hashable, _Form] = {}
        self.num_bytes = 0
        """Memory of all recordings."""
        self.reason = self._refused
        """Why no more steps are recorded, or None."""
        # A pool whose graphs were destroyed cannot be used again.
        self._pool = None if self._stream is None else torch.cuda.graph_pool_handle()

    def place(self, name: str, tree: Tree) -> Tree:
        """Return a tree of tensors at the addresses where steps read what has this name.

        They are those of the last tree, unless its form has changed. Without recordings the tree
        is returned as it is.
        """
        if self.reason is not None:
            return tree
        leaves, structure = tree_flatten(tree)
        kept_structure, kept = self._placed.get(name, (None, []))
        if (structure, _forms(leaves)) != (kept_structure, _forms(kept)):
            kept = [_in_place(leaf) for leaf in leaves]
        for index, new in enumerate(leaves):
            if not isinstance(new, torch.Tensor):
                kept[index] = new
            elif kept[index].data_ptr() != new.data_ptr():
                kept[index].copy_(new)
        self._placed[name] = structure, kept
        return tree_unflatten(kept, structure)

    def follow(
        self,
        modules: Iterable[nn.Module],
        optimizers: Iterable[torch.optim.Optimizer],
        others: Any = None,
    ) -> None:
        """Drop all recordings if a tensor has moved since the last call, which precedes an update.

        Args:
            modules: The modules that steps read and change.
            optimizers: The optimisers that they step, at rates that are among the others.
            others: Tree of the other tensors and numbers that they read, besides their arguments
                and what was placed.
        """
        if self._capture is None:
            return
        live: list[Any] = [*self._placed.values(), others]
        for module in modules:
            tensors = *module.parameters(), *module.buffers()
            live += [tensors, [parameter.grad for parameter in module.parameters()]]
            live.append([part.training for part in module.modules()])
        for optimizer in optimizers:
            live += [dict(state) for state in optimizer.state.values()]
            live += [{**group, "lr": None} for group in optimizer.param_groups]
        followed = tree_map_only(torch.Tensor, _place_of, tree_leaves(live))
        if followed != self._followed:
            self.forget()
        self._followed = followed

    def _form_of(self, function: Any, tensors: Any, fixed: dict[str, Hashable]) -> _Form | None:
        """Return the form of a step, or None if it is not recorded and will not be."""
        stream = self._stream and torch.cuda.current_stream(self._device)
        caller_records = stream is not None and torch.cuda.is_current_stream_capturing()
        if self._capture is None or self._inside or caller_records:
            return None
        if inspect.ismethod(function):  # holding it would keep the algorithm and this in a circle
            function = weakref.WeakMethod(function)
        leaves, structure = tree_flatten(tensors)
        shapes = tree_map_only(torch.Tensor, lambda tensor: (tensor.shape, tensor.dtype), leaves)
        operands = operand_dtype_of(self._device, torch.float32)
        precision = operands, tf32_in_layers(), tf32_in_products()
        key = function, *sorted(fixed.items()), structure, *shapes, *precision, stream
        form = self._forms.get(key)
        if form is not None and form.recording is not None:
            return form
        if form is None and len(self._forms) == _MAX_FORMS:
            self._refuse(f"{_MAX_FORMS} forms of steps were seen; let batches have fewer sizes")
        elif stream and self.num_bytes >= _SHARE * torch.cuda.mem_get_info(self._device)[1]:
            self._refuse(f"recordings take {_SHARE:.0%} of the memory; let batches be smaller")
        return self._forms.setdefault(key, _Form()) if self.reason is None else None

    def _refuse(self, reason: str) -> None:
        """Record no more steps, and say why, once."""
        self.reason = reason
        if reason not in self._said:
            self._said.add(reason)
            ending = "Other steps run as they are, with the same results in more time."
            warnings.warn(f"No more steps are recorded: {reason}. {ending}", stacklevel=4)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Run on the stream of captures, after all earlier and before all later work."""
        self._inside = True
        current = self._stream and torch.cuda.current_stream(self._device)
        _wait(self._stream, current)
        try:
            with torch.cuda.stream(self._stream):  # None changes nothing
                self._start = self._stream and self._stream.record_event()
                yield
        finally:
            self.join()
            _wait(current, self._stream)
            self._inside, self._start = False, None

    @contextlib.contextmanager
    def _cuda_graph(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture a CUDA graph on the current stream, which is the stream of captures.

        Python's collector pauses: freeing a simulator's arrays calls CUDA and breaks a capture.

        Raises:
            NotCapturedError: If the capture fails.
            KeyboardInterrupt: After Ctrl+C, also if the capture then fails.
        """
        graph, collects, interrupt = torch.cuda.CUDAGraph(), gc.isenabled(), None
        _UNFINISHED.append(graph)
        gc.disable()
        try:
            # "thread_local": other threads of a simulator may call CUDA meanwhile.
            with torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
                self._start = self._stream and self._stream.record_event()  # of this capture
                reserved = torch.cuda.memory_reserved(self._device)  # a capture's memory is its own
                try:
                    yield graph
                except KeyboardInterrupt as error:
                    interrupt = error
                    raise
                finally:
                    self.join()
                self.num_bytes += torch.cuda.memory_reserved(self._device) - reserved
            _UNFINISHED.remove(graph)
        except RuntimeError as error:  # out of memory is one
            # Without an end of the capture, torch before 2.13 refuses to make random numbers.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            self.forget()
            self.traceback = traceback.format_exc()
            traceback.clear_frames(error.__traceback__)  # they hold the activations
            if interrupt is not None:
                raise interrupt from None
            # After a broken capture, ending it fails as well: the context has the first error.
            raise NotCapturedError(error.__context__ or error) from error
        finally:
            if collects:
                gc.enable()


def _wait(later: torch.cuda.Stream | None, *earlier: torch.cuda.Stream | None) -> None:
    for stream in earlier:
        if later is not None and stream is not None:
            later.wait_stream(stream)


def _tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _copy_of(tree: Any) -> Any:
    """Return a copy of a tree of tensors, in few launches."""
    tensors = _tensors_of(tree)
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    left = iter(copies)
    return tree_map_only(torch.Tensor, lambda _: next(left), tree)


def _forms(leaves: Sequence[Any]) -> list[Hashable]:
    tensors = (leaf if isinstance(leaf, torch.Tensor) else None for leaf in leaves)
    return [t if t is None else (t.shape, t.dtype, t.device) for t in tensors]


def _in_place(leaf: Any) -> Any:
    """Return a tensor that later ones can be copied into; anything else as it is."""
    if not isinstance(leaf, torch.Tensor) or (leaf.is_contiguous() and not leaf.is_inference()):
        return leaf
    return leaf.clone(memory_format=torch.contiguous_format)


def _place_of(tensor: torch.Tensor) -> Hashable:
    """Return what a recording knows of a tensor: where and how its memory lies."""
    layout = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    return tensor.data_ptr(), *layout, tensor.requires_grad
