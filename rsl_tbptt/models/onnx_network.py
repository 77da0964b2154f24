"""Feed-forward networks in ONNX files, run by torch's operators on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Values = Sequence[int] | torch.Tensor
"""Integers of an attribute, or of a constant on the host."""


class OnnxNetwork(nn.Module):
    """The graph of an ONNX file. No code of the file runs, only the functions of this module.

    Floating-point constants are buffers. Integers, which are sizes and indices, stay on the host,
    so that reading them never waits for a device.
    """

    def __init__(self, graph: Any) -> None:
        """Take the graph.

        Args:
            graph: ``onnx.load(path).graph``.

        Raises:
            ValueError: If it has several inputs, or an operator that is not in ``OPERATORS``.
        """
        super().__init__()
        self._integers: dict[str, torch.Tensor] = {}
        self._floats: list[str] = []
        self._nodes: list[tuple[Callable[..., Any], list[str], list[str], dict[str, Any]]] = []
        for constant in graph.initializer:
            self._keep(constant.name, _plain(constant))
        # Old files list their constants among the inputs, too.
        inputs = [each for each in graph.input if each.name not in {*self._floats, *self._integers}]
        if len(inputs) != 1:
            raise ValueError(
                f"has the inputs {[each.name for each in inputs]}, expected observations alone: a"
                " policy with a state or a time needs its own model or controller."
            )
        self._input, self._outputs = inputs[0].name, [each.name for each in graph.output]
        self.width: int | None = inputs[0].type.tensor_type.shape.dim[-1].dim_value or None
        """Number of values of the input D; None if the file does not tell."""
        for node in graph.node:
            self._add(node)

    def _add(self, node: Any) -> None:
        """Add an operator, or keep the constant that it is.

        Raises:
            ValueError: If it is not in ``OPERATORS``.
        """
        from onnx import helper

        given = {each.name: _plain(helper.get_attribute_value(each)) for each in node.attribute}
        if node.op_type == "Constant":
            self._keep(node.output[0], torch.as_tensor(*given.values()))
        elif node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            raise ValueError(
                f"has the operator {node.op_type}, expected those of a multilayer perceptron:"
                " rebuild its model and name its checkpoint."
            )
        else:
            run = OPERATORS[node.op_type]
            self._nodes.append((run, [*node.input], [*node.output], given))

    def _keep(self, name: str, value: torch.Tensor) -> None:
        if value.is_floating_point():
            self.register_buffer(f"constant_{len(self._floats)}", value)
            self._floats.append(name)
        else:
            self._integers[name] = value

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the outputs of the graph, a tuple if there are several.

        Args:
            x: The input, in rows, whatever their number was in the export. Shape: (rows, D).
        """
        values: dict[str, Any] = {"": None, self._input: x, **self._integers}
        values.update(zip(self._floats, self.buffers(), strict=True))
        for run, inputs, outputs, attributes in self._nodes:
            result = run(*(values[name] for name in inputs), **attributes)
            every = result if isinstance(result, tuple) else (result,)
            values.update(zip(outputs, every, strict=False))
        results = [values[name] for name in self._outputs]
        return tuple(results) if len(results) > 1 else results[0]


def _plain(value: Any) -> Any:
    """Return a tensor of ONNX as one of torch, bytes as text, and any other value as it is."""
    from onnx import TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        return torch.from_numpy(numpy_helper.to_array(value).copy())
    return value.decode() if isinstance(value, bytes) else value


def _ints(values: Values) -> list[int]:
    return values.tolist() if isinstance(values, torch.Tensor) else [*values]


# The functions below have the arguments of ONNX's operators: its inputs in their order, then its
# attributes by name. Older versions of an operator have attributes in place of some inputs.


def _gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> torch.Tensor:
    a, b = (a.T if transA else a), (b.T if transB else b)
    return alpha * (a @ b) if c is None else torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _clip(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    return x if min is None and max is None else torch.clamp(x, min, max)


def _reshape(x: torch.Tensor, shape: Values, allowzero: int = 0) -> torch.Tensor:
    sizes = [x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(_ints(shape))]
    if sizes[0] == 1 and -1 not in sizes and math.prod(sizes) != x.numel():
        sizes[0] = x.shape[0]  # the file has the single row of its export in place of the rows
    return x.reshape(sizes)


def _flatten(x: torch.Tensor, axis: int = 1) -> torch.Tensor:
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _squeeze(x: torch.Tensor, axes: Values | None = None) -> torch.Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(_ints(axes)))


def _unsqueeze(x: torch.Tensor, axes: Values) -> torch.Tensor:
    places = _ints(axes)
    for axis in sorted(place % (x.dim() + len(places)) for place in places):
        x = x.unsqueeze(axis)
    return x


def _slice(
    x: torch.Tensor,
    starts: Values,
    ends: Values,
    axes: Values | None = None,
    steps: Values | None = None,
) -> torch.Tensor:
    begin, end = _ints(starts), _ints(ends)
    step = [1] * len(begin) if steps is None else _ints(steps)
    where = [slice(None)] * x.dim()
    for i, axis in enumerate(range(len(begin)) if axes is None else _ints(axes)):
        where[axis] = slice(begin[i], end[i], step[i])
    return x[tuple(where)]


def _split(
    x: torch.Tensor, split: Values | None = None, axis: int = 0, num_outputs: int = 1
) -> tuple[torch.Tensor, ...]:
    equal = -(-x.shape[axis] // num_outputs)
    return tuple(torch.split(x, equal if split is None else _ints(split), axis))


def _gather(x: torch.Tensor, indices: torch.Tensor, axis: int = 0) -> torch.Tensor:
    parts = [x.select(axis, index) for index in indices.flatten().tolist()]
    return parts[0] if indices.dim() == 0 else torch.stack(parts, axis)


def _expand(x: torch.Tensor, shape: Values) -> torch.Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(_ints(shape))))


def _reduced(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(
        x: torch.Tensor,
        axes: Values | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> torch.Tensor:
        dims = range(x.dim()) if axes is None else _ints(axes)
        return function(x, dim=tuple(dims), keepdim=bool(keepdims))

    return run


def _layer_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


def _rms_norm(
    x: torch.Tensor, scale: torch.Tensor, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[axis:], scale, epsilon)


def _batch_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> torch.Tensor:
    return functional.batch_norm(x, mean, var, scale, bias, bool(training_mode), eps=epsilon)


_TYPES = {
    **{1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16},
    **{6: torch.int32, 7: torch.int64, 9: torch.bool},
}
"""torch's types by ONNX's numbers."""


def _cast(x: torch.Tensor, to: int, saturate: int = 1) -> torch.Tensor:
    return x.to(_TYPES[to])


OPERATORS: Mapping[str, Callable[..., Any]] = {
    # Activations.
    "Celu": lambda x, alpha=1.0: functional.celu(x, alpha),
    "Elu": lambda x, alpha=1.0: functional.elu(x, alpha),
    "Gelu": lambda x, approximate="none": functional.gelu(x, approximate=approximate),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    "HardSwish": functional.hardswish,
    "LeakyRelu": lambda x, alpha=0.01: functional.leaky_relu(x, alpha),
    "Mish": functional.mish,
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x),
    "Relu": torch.relu,
    "Selu": lambda x, alpha=1.6732632, gamma=1.050701: gamma * functional.elu(x, alpha),
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Swish": lambda x, alpha=1.0: x * torch.sigmoid(alpha * x),
    "Tanh": torch.tanh,
    # Arithmetic.
    "Abs": torch.abs,
    "Add": torch.add,
    "Clip": _clip,
    "Div": _div,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Gemm": _gemm,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Max": lambda *inputs: reduce(torch.maximum, inputs),
    "Min": lambda *inputs: reduce(torch.minimum, inputs),
    "Mod": lambda a, b, fmod=0: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Pow": torch.pow,
    "Reciprocal": torch.reciprocal,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    # Normalisation.
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "ReduceL2": _reduced(torch.linalg.vector_norm),
    "ReduceMean": _reduced(torch.mean),
    "ReduceSum": _reduced(torch.sum),
    # Comparisons.
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Where": torch.where,
    # Shapes and types.
    "Cast": _cast,
    "CastLike": lambda x, like: x.to(like.dtype),
    "Concat": lambda *inputs, axis: torch.cat(inputs, axis),
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": lambda x: x,
    "Reshape": _reshape,
    "Shape": lambda x, start=0, end=None: torch.tensor(x.shape[start:end]),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": lambda x, perm=None: x.permute(perm or [*range(x.dim())][::-1]),
    "Unsqueeze": _unsqueeze,
}
"""ONNX's operators that the exporters of feed-forward policies write, by name."""
