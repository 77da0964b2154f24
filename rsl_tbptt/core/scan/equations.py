"""Equations of a cell as statements for a compiler, with their gradient derived from them.

The equations run once on symbols. Each operation on a symbol appends one statement to a program:
a name and its expression. The gradient appends statements, too, by the chain rule in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Gradient = Callable[["Symbol"], Sequence[tuple["Symbol", "Symbol"]]]
"""Maps the gradient of an operation's result to its operands and the gradient of each."""


class Symbol:
    """A number of the equations, under a name of its own in the program."""

    def __init__(
        self, program: list[Symbol], expression: str, gradient: Gradient | None = None
    ) -> None:
        """Append a statement to the program.

        Args:
            program: The statements so far.
            expression: The number, from names of earlier statements.
            gradient: Derivative of the operation; None for an input or a constant.
        """
        self.name = f"v{len(program)}"
        self.expression = expression
        self.gradient = gradient
        self._program = program
        program.append(self)

    def __add__(self, other: Symbol | float) -> Symbol:
        """Add."""
        b = self._symbol(other)
        return self._append(f"{self.name} + {b.name}", lambda g: [(self, g), (b, g)])

    def __sub__(self, other: Symbol | float) -> Symbol:
        """Subtract."""
        b = self._symbol(other)
        return self._append(f"{self.name} - {b.name}", lambda g: [(self, g), (b, -g)])

    def __mul__(self, other: Symbol | float) -> Symbol:
        """Multiply."""
        b = self._symbol(other)
        return self._append(f"{self.name} * {b.name}", lambda g: [(self, g * b), (b, g * self)])

    def __rsub__(self, other: float) -> Symbol:
        """Subtract from a number."""
        return self._symbol(other) - self

    def __neg__(self) -> Symbol:
        """Negate."""
        return -1.0 * self

    __radd__, __rmul__ = __add__, __mul__

    def sigmoid(self) -> Symbol:
        """Return the sigmoid."""
        y = self._append(f"sigmoid({self.name})", lambda g: [(self, g * (y * (1.0 - y)))])
        return y

    def tanh(self) -> Symbol:
        """Return the hyperbolic tangent."""
        y = self._append(f"tanh_of({self.name})", lambda g: [(self, g * (1.0 - y * y))])
        return y

    def _append(self, expression: str, gradient: Gradient) -> Symbol:
        return Symbol(self._program, expression, gradient)

    def _symbol(self, value: Symbol | float) -> Symbol:
        return value if isinstance(value, Symbol) else Symbol(self._program, repr(float(value)))


class Statements(NamedTuple):
    """A step of a cell: ``(name, expression)`` each, and the names of its results."""

    forward: list[tuple[str, str]]
    after: list[str]
    """Names of the state after the step."""

    backward: list[tuple[str, str]]
    """Contains ``forward``: activations are computed again, which is cheaper than to keep them."""

    grad_gates: list[str]
    grad_before: list[str]
    """Names of the gradients of the gates and of the state before the step."""


def statements_of(
    equations: Callable[..., Sequence[Symbol]], num_gates: int, num_states: int
) -> Statements:
    """Trace equations and their gradient; see :class:`Statements`.

    Expressions of inputs are calls: ``gate(k)``, ``before(s)`` and, in the backward pass,
    ``grad_after(s)``.
    """
    program: list[Symbol] = []
    gates = [Symbol(program, f"gate({k})") for k in range(num_gates)]
    before = [Symbol(program, f"before({s})") for s in range(num_states)]
    after = list(equations(tuple(gates), tuple(before)))
    forward = list(program)
    gradients: dict[Symbol, Symbol] = {}

    def add(symbol: Symbol, gradient: Symbol) -> None:
        known = gradients.get(symbol)
        gradients[symbol] = gradient if known is None else known + gradient

    for s, symbol in enumerate(after):
        add(symbol, Symbol(program, f"grad_after({s})"))
    for symbol in reversed(forward):
        if symbol.gradient is not None and symbol in gradients:
            for operand, gradient in symbol.gradient(gradients[symbol]):
                add(operand, gradient)
    zero = Symbol(program, "0.0")

    def names(symbols: Sequence[Symbol]) -> list[str]:
        return [gradients.get(symbol, zero).name for symbol in symbols]

    def lines(symbols: Sequence[Symbol]) -> list[tuple[str, str]]:
        return [(symbol.name, symbol.expression) for symbol in symbols]

    return Statements(
        lines(forward), [s.name for s in after], lines(program), names(gates), names(before)
    )
