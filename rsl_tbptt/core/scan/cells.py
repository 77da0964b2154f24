"""Recurrent cells by their equations, and the layers that are made of them.

You write how gates and state become the next state, in ``+``, ``-``, ``*``, ``sigmoid()`` and
``tanh()`` of single numbers, and say which gates depend on the input x and the state h'::

    gates          w_ih x + b_ih + w_hh h' + b_hh
    input_gates    w_ih x + b_ih
    hidden_gates                   w_hh h' + b_hh

Engines run the equations on tensors (``reference``) or translate them (``equations``). h' is the
first tensor of the state before the step; a state has one or two tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rsl_tbptt.core.hidden_state import HiddenState, as_tensors, from_tensors

Equations = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Maps all gates of a step, in the order above, and the state's tensors to the next state's."""


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent layer; calling it makes layers, as calling ``nn.LSTM`` does."""

    name: str
    """Name in ``CELLS``, in upper case. Models take it in lower case as their ``rnn_type``."""

    equations: Equations
    gates: int
    input_gates: int = 0
    hidden_gates: int = 0
    num_states: int = 1
    """Tensors of the state: 1, or 2 as for an LSTM."""

    forget_gate: int | None = None
    """Gate whose bias starts at 1, so that the state decays slowly; None: no gate."""

    def __post_init__(self) -> None:
        """Check what the engines rely on.

        Raises:
            ValueError: If the name is not an identifier in upper case, or the state is of another
                size.
        """
        if not (self.name.isupper() and self.name.isidentifier()):
            raise ValueError(f"name is '{self.name}', expected upper case: letters, digits and _.")
        if self.num_states not in (1, 2):
            raise ValueError(f"num_states is {self.num_states}, expected 1 or 2: h, or h and c.")

    @property
    def num_gates(self) -> int:
        """Number of all gates."""
        return self.gates + self.input_gates + self.hidden_gates

    def __call__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Any
    ) -> CellLayers:
        """Return layers; ``options`` are the device and dtype of their parameters."""
        return CellLayers(self, input_size, hidden_size, num_layers, **options)


class CellLayers(nn.Module):
    """Stacked layers of a cell, with the interface and parameter names of ``nn.LSTM``.

    ``weight_ih_l0`` has the rows of ``gates`` and ``input_gates``, ``weight_hh_l0`` those of
    ``gates`` and ``hidden_gates``, H each. Weights start orthogonal, those of ``input_gates`` and
    ``hidden_gates`` apart from the others; biases start at 0.
    """

    bias = True

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Create the parameters of ``num_layers`` layers."""
        super().__init__()
        self.cell, self.mode = cell, cell.name
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        of_x, of_h = cell.gates + cell.input_gates, cell.gates + cell.hidden_gates
        for layer in range(num_layers):
            columns = input_size if layer == 0 else hidden_size
            for name, shape in (
                ("weight_ih", (of_x * hidden_size, columns)),
                ("weight_hh", (of_h * hidden_size, hidden_size)),
                ("bias_ih", (of_x * hidden_size,)),
                ("bias_hh", (of_h * hidden_size,)),
            ):
                empty = torch.empty(shape, device=device, dtype=dtype)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters."""
        both, H = self.cell.gates * self.hidden_size, self.hidden_size
        for w_ih, w_hh, b_ih, b_hh in self.all_weights:
            for rows in (w_ih[:both], w_ih[both:], w_hh[:both], w_hh[both:]):
                nn.init.orthogonal_(rows)
            nn.init.zeros_(b_ih)
            nn.init.zeros_(b_hh)
            if self.cell.forget_gate is not None:
                nn.init.ones_(b_ih[self.cell.forget_gate * H :][:H])

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """Parameters of each layer, in the order w_ih, w_hh, b_ih, b_hh."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [
            [self.get_parameter(f"{name}_l{layer}") for name in names]
            for layer in range(self.num_layers)
        ]

    def forward(
        self, inputs: torch.Tensor, state: HiddenState = None
    ) -> tuple[torch.Tensor, HiddenState]:
        """Run all layers over inputs (T, N, D), as ``nn.LSTM`` does; no state means zeros."""
        # As ``nn.LSTM`` does, take a list: older rsl_rl makes one of its stored states.
        before = tuple(state) if isinstance(state, list) else as_tensors(state)
        if not before:
            zeros = inputs.new_zeros(self.num_layers, inputs.shape[1], self.hidden_size)
            before = (zeros,) * self.cell.num_states
        lasts = []
        for layer, weights in enumerate(self.all_weights):
            inputs, last = self._run(inputs, tuple(t[layer] for t in before), weights)
            lasts.append(last)
        return inputs, from_tensors([torch.stack(each) for each in zip(*lasts, strict=True)])

    def _run(
        self, inputs: torch.Tensor, state: Sequence[torch.Tensor], weights: Sequence[nn.Parameter]
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        w_ih, w_hh, b_ih, b_hh = weights
        both, outputs = self.cell.gates, []
        for of_input in functional.linear(inputs, w_ih, b_ih).unbind(0):
            of_x = of_input.split(self.hidden_size, dim=-1)
            of_h = functional.linear(state[0], w_hh, b_hh).split(self.hidden_size, dim=-1)
            sums = [x + h for x, h in zip(of_x[:both], of_h[:both], strict=True)]
            state = self.cell.equations((*sums, *of_x[both:], *of_h[both:]), state)
            outputs.append(state[0])
        return torch.stack(outputs), state


RecurrentLayers = nn.RNNBase | CellLayers
"""Layers in time-major order: torch's own, or those of a ``Cell``."""


def lstm(gates: Sequence[Any], state: Sequence[Any]) -> Sequence[Any]:
    """``nn.LSTM`` (Hochreiter and Schmidhuber, 1997; Gers et al., 2000)."""
    i, f, g, o = gates
    _, c = state
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru(gates: Sequence[Any], state: Sequence[Any]) -> Sequence[Any]:
    """``nn.GRU`` (Cho et al., 2014): ``u``, the candidate's part from h, has its own bias."""
    r, z, n, u = gates
    (h,) = state
    n = (n + r.sigmoid() * u).tanh()
    return (n + z.sigmoid() * (h - n),)


OF_TORCH = {
    "LSTM": Cell("LSTM", lstm, gates=4, num_states=2),
    "GRU": Cell("GRU", gru, gates=2, input_gates=1, hidden_gates=1),
}
"""Torch's own layers as cells, by their ``mode``; their parameters have the same order."""


def cell_of(rnn: RecurrentLayers) -> Cell:
    """Return the cell of recurrent layers."""
    return rnn.cell if isinstance(rnn, CellLayers) else OF_TORCH[rnn.mode]


def sru(gates: Sequence[Any], state: Sequence[Any]) -> Sequence[Any]:
    """Spatially enhanced recurrent unit, LSTM form with a refined forget gate.

    The factor ``s``, which depends on the input alone, multiplies the candidate: with it the cell
    can turn what it remembers into the robot's present frame.

    References:
        Yang et al. (2025), arXiv 2506.05997; Gu et al. (2020), ICML: the refined gate ``r``.
    """
    i, f, g, o, s = gates
    _, c = state
    i, f = i.sigmoid(), f.sigmoid()
    r = i * (1.0 - (1.0 - f) * (1.0 - f)) + (1.0 - i) * f * f
    c = r * c + (1.0 - r) * (s * g).tanh()
    return o.sigmoid() * c.tanh(), c


SRU = Cell("SRU", sru, gates=4, input_gates=1, num_states=2, forget_gate=1)
"""As ETH Zurich deploys it: the factor has no part from h, and the forget gate starts open."""
