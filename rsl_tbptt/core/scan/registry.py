"""The engines and cells that ``recurrent_scan`` knows, as data.

The front door, "auto", the errors and the tests read these entries and nothing else. A new engine
is a file of its own and an entry in ``ENGINES``; a new cell is an entry in ``CELLS``, which
``reference`` and ``segments`` run at once, and the file of each faster engine that shall run it.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState, detach, from_tensors
from rsl_tbptt.core.scan import reference, segments
from rsl_tbptt.core.scan.cpu import compiled, compiler, fused
from rsl_tbptt.core.scan.cuda import cells, graphs, torchrl_triton
from rsl_tbptt.core.scan.inputs import HeldInputs
from rsl_tbptt.core.scan.layers import Scan, layer_by_layer


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent layers."""

    name: str
    rnn_type: type[nn.LSTM | nn.GRU | nn.RNN]
    """torch's layers of this kind: what they do is correct."""
    num_states: int
    """Tensors that make up its state, 1 or 2."""

    def zero_state(self, rnn: nn.RNNBase, num_envs: int) -> HiddenState:
        """Return the state at the start of an episode, tensors of shape (L, num_envs, H)."""
        weight = rnn.all_weights[0][0]
        zeros = weight.new_zeros(rnn.num_layers, num_envs, rnn.hidden_size)
        return from_tensors([zeros] * self.num_states)


@dataclass(frozen=True)
class Engine:
    """A way to run recurrent layers over a window."""

    name: str
    cells: Mapping[str, Scan]
    """How it scans each cell that it knows, by the cell's name."""
    cuts_gradient: bool = False
    """Whether these scans take ``cuts``; others are run from cut to cut."""
    knows_held_inputs: bool = False
    """Whether these scans take ``HeldInputs``; others are given them joined."""
    devices: tuple[str, ...] = ()
    """Types of device that it runs on, empty for all."""
    dtypes: tuple[torch.dtype, ...] = ()
    """Dtypes of weights that it takes, empty for all."""
    hand_written: bool = True
    """Whether its passes are written out in this package: the backward pass runs once, and autocast
    changes the operands of products alone, not the dtype of the state."""
    auto: bool = False
    """Whether "auto" may choose it."""
    is_available: Callable[[], bool] = lambda: True
    """Returns whether what it needs beside torch is installed."""

    def scan(
        self,
        cell: Cell,
        rnn: nn.RNNBase,
        inputs: torch.Tensor | HeldInputs,
        state: HiddenState,
        episode_starts: torch.Tensor,
        cuts: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, HiddenState]:
        """Scan layers of a cell that it knows; see ``recurrent_scan``.

        ``inputs`` is (T, N, D), ``state`` (L, N, H) and not None, ``episode_starts`` (T, N).
        """
        run = self.cells[cell.name]
        if isinstance(inputs, HeldInputs) and not self.knows_held_inputs:
            inputs = inputs.joined()
        if self.cuts_gradient:
            return run(rnn, inputs, state, episode_starts, cuts)
        if not cuts:
            return run(rnn, inputs, state, episode_starts)
        outputs = []
        for first, stop in itertools.pairwise((0, *cuts, len(inputs))):
            state = detach(state) if first else state
            output, state = run(rnn, inputs[first:stop], state, episode_starts[first:stop])
            outputs.append(output)
        return torch.cat(outputs), state

    def objection(self, cell: Cell, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why it cannot run a cell with weights of ``dtype`` on ``device``, or None."""
        if self.devices and device.type not in self.devices:
            return f"it runs on {' and '.join(self.devices)} alone"
        if cell.name not in self.cells:
            return f"it runs {' and '.join(self.cells)} alone"
        if self.dtypes and dtype not in self.dtypes:
            return f"it takes weights of {' and '.join(map(str, self.dtypes))} alone"
        return None


CELLS = {cell.name: cell for cell in (Cell("lstm", nn.LSTM, 2), Cell("gru", nn.GRU, 1))}
"""By name."""

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "compiled",
            layer_by_layer(compiled.LAYERS),
            cuts_gradient=True,
            knows_held_inputs=True,
            devices=("cpu",),
            auto=True,
            is_available=compiler.is_available,
        ),
        Engine("cuda_graphs", layer_by_layer(graphs.LAYERS), devices=("cuda",), auto=True),
        Engine("cuda_cells", layer_by_layer(cells.LAYERS), devices=("cuda",), auto=True),
        Engine("fused", layer_by_layer(fused.LAYERS), cuts_gradient=True, auto=True),
        Engine(
            "torchrl",
            layer_by_layer(torchrl_triton.LAYERS),
            devices=("cuda",),
            dtypes=(torch.float32,),
            hand_written=False,
            is_available=torchrl_triton.is_available,
        ),
        Engine("segments", dict.fromkeys(CELLS, segments.scan), hand_written=False),
        Engine("reference", dict.fromkeys(CELLS, reference.scan), hand_written=False),
    )
}
"""By name, those expected to be the fastest on their device first: "auto" tries them in this order.
``reference`` defines what is correct; every other engine equals it in values and gradients."""


def cell_of(rnn: object) -> Cell | None:
    """Return the cell of recurrent layers, None if there is no entry for it."""
    return next((cell for cell in CELLS.values() if isinstance(rnn, cell.rnn_type)), None)


def resolve_engine(engine: str) -> Engine | None:
    """Return the engine of that name, None for "auto".

    Raises:
        ValueError: If there is none.
    """
    if engine == "auto":
        return None
    if engine not in ENGINES:
        raise ValueError(f"scan_engine is '{engine}', expected one of {['auto', *ENGINES]}.")
    return ENGINES[engine]


def check_engine(engine: Engine, cell: Cell, device: torch.device, dtype: torch.dtype) -> None:
    """Check that an engine runs a cell with weights of ``dtype`` on ``device``.

    Raises:
        ValueError: If it does not.
    """
    objection = engine.objection(cell, device, dtype)
    if objection is not None:
        others = [e.name for e in ENGINES.values() if e.objection(cell, device, dtype) is None]
        raise ValueError(
            f"scan_engine is '{engine.name}', expected one of {['auto', *others]} for cell"
            f" '{cell.name}' with weights of {dtype} on {device}: {objection}."
        )


def candidates(cell: Cell, device: torch.device, dtype: torch.dtype) -> Iterator[Engine]:
    """Yield what "auto" tries, the fastest expected first."""
    for engine in ENGINES.values():
        if engine.auto and not engine.objection(cell, device, dtype) and engine.is_available():
            yield engine
