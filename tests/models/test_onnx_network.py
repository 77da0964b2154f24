"""ONNX's operators in torch, compared with ONNX's own reference; sizes never wait for a device."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.exported_policies import trained, write_onnx
from support.tolerances import WINDOW_FLOAT32

from rsl_tbptt.models.onnx_network import OPERATORS, OnnxNetwork

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + 0.1
ROW, COLUMN = X[:1], X[:, :1]
W, B = RNG.normal(size=(4, 5)).astype(np.float32), RNG.normal(size=5).astype(np.float32)
PER_COLUMN = [np.abs(RNG.normal(size=4)).astype(np.float32) + 0.1 for _ in range(4)]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def number(value: float) -> np.ndarray:
    return np.array(value, dtype=np.float32)


OF_ONE = (
    "Abs Elu Celu Erf Exp Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg Reciprocal Relu"
    " Selu Sigmoid Softmax Softplus Softsign Tanh"
)
OF_TWO = "Add Div Max Min Mul PRelu Sub"
COMPARISONS = "Equal Greater GreaterOrEqual Less LessOrEqual"

Case = tuple[list[Any], dict[str, Any]]
"""Inputs, the first of which is the network's, and attributes."""

CASES: dict[str, list[Case]] = {
    **{name: [([X], {})] for name in OF_ONE.split()},
    **{
        name: [([X, ROW], {}), ([X, COLUMN], {}), ([X, number(0.3)], {})] for name in OF_TWO.split()
    },
    **{
        name: [([X, np.where(X > 0, X, 0.5).astype(np.float32)], {})]
        for name in COMPARISONS.split()
    },
    "BatchNormalization": [([X, *PER_COLUMN], {"epsilon": 1e-3})],
    "Cast": [([X], {"to": TensorProto.DOUBLE}), ([X], {"to": TensorProto.INT64})],
    "CastLike": [([X, np.ones(1)], {})],
    "Clip": [([X, number(-0.2), number(0.3)], {}), ([X, None, number(0.3)], {}), ([X], {})],
    "Concat": [([X, X, W[:3]], {"axis": -1}), ([X, X], {"axis": 0})],
    "Expand": [([COLUMN, ints(3, 4)], {}), ([X, ints(2, 1, 1)], {})],
    "Flatten": [([X[:, None]], {}), ([X], {"axis": 0}), ([X[:, None]], {"axis": -1})],
    "Gather": [([X, ints(2, 0)], {"axis": 1}), ([X, np.array(-1)], {"axis": 0})],
    "Gemm": [
        ([X, W, B], {}),
        ([X, W.T.copy(), B], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
        ([X.T.copy(), W], {"transA": 1, "alpha": 0.5}),
    ],
    "LayerNormalization": [([X, *PER_COLUMN[:2]], {"epsilon": 1e-3}), ([X, PER_COLUMN[0]], {})],
    "Log": [([POSITIVE], {})],
    "MatMul": [([X, W], {})],
    "Mod": [([X, ROW], {"fmod": 1})],
    "Pow": [([POSITIVE, number(1.5)], {})],
    "RMSNormalization": [([X, PER_COLUMN[0]], {"epsilon": 1e-3})],
    **{
        name: [([X, ints(-1)], {}), ([X], {"keepdims": 0}), ([X, ints(0, 1)], {"keepdims": 0})]
        for name in ("ReduceL2", "ReduceMean", "ReduceSum")
    },
    "Reshape": [
        ([X, ints(0, 2, -1)], {}),
        ([X, ints(-1)], {}),
        ([X, ints(1, 3, 4)], {}),
        ([X, ints(4, 3)], {"allowzero": 1}),
    ],
    "Shape": [([X], {}), ([X], {"start": -1}), ([X], {"start": 0, "end": 1})],
    "Slice": [
        ([X, ints(1), ints(2**63 - 1), ints(-1)], {}),
        ([X, ints(0, -3), ints(-1, 9), ints(0, 1), ints(1, 2)], {}),
        ([X, ints(1), ints(3)], {}),
    ],
    "Split": [
        ([X, ints(1, 3)], {"axis": 1}),
        ([X], {"axis": 1, "num_outputs": 2}),
        ([X], {"axis": 0, "num_outputs": 2}),
    ],
    "Sqrt": [([POSITIVE], {})],
    "Squeeze": [([X[:, None], ints(1)], {}), ([X[:, None]], {}), ([X[..., None], ints(-1)], {})],
    "Swish": [([X], {}), ([X], {"alpha": 0.5})],
    "Transpose": [([X], {}), ([X[:, None]], {"perm": [1, 2, 0]})],
    "Unsqueeze": [([X, ints(1)], {}), ([X, ints(-1, 0)], {})],
    "Where": [([X > 0, X, ROW], {})],
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    **{name: {"alpha": 0.3} for name in ("Celu", "Elu", "LeakyRelu")},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "Selu": {"alpha": 1.5, "gamma": 0.9},
    "Softmax": {"axis": 0},
    "Gelu": {"approximate": "tanh"},
}
"""Other values of attributes, on the inputs of the first case."""
OF_INTEGERS: dict[str, Case] = {
    "Div": ([ints(7, -7, 5), ints(2, 2, 5)], {}),
    "Mod": ([ints(7, -7, 5), ints(2, 2, 5)], {}),
    "Mul": ([ints(7, -7, 5), ints(2, 2, 5)], {}),
}
"""Arithmetic with sizes."""


def graph_of(name: str, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Build a model of one node with constants, and one with all inputs, for the reference."""
    names = ["x", *("" if each is None else f"i{i}" for i, each in enumerate(inputs[1:]))]
    num_outputs = 2 if name == "Split" else 1
    outputs = [f"y{i}" for i in range(num_outputs)]
    node = helper.make_node(name, names, outputs, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    x = helper.make_tensor_value_info("x", kind, inputs[0].shape)
    ends = [helper.make_tensor_value_info(each, TensorProto.UNDEFINED, None) for each in outputs]
    pairs = zip(names[1:], inputs[1:], strict=True)
    constants = [numpy_helper.from_array(v, n) for n, v in pairs if v is not None]
    graph = helper.make_graph([node], "one", [x], ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])


def check(name: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    model = graph_of(name, inputs, attributes)
    expected = ReferenceEvaluator(model).run(None, {"x": inputs[0]})
    found = OnnxNetwork(model.graph)(torch.from_numpy(inputs[0].copy()))
    found = found if isinstance(found, tuple) else (found,)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, torch.from_numpy(np.array(b)), **WINDOW_FLOAT32)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_that_of_onnxs_reference(name):
    cases = [*CASES[name]]
    if name in ATTRIBUTES:
        cases.append((cases[0][0], ATTRIBUTES[name]))
    if name in OF_INTEGERS:
        cases.append(OF_INTEGERS[name])
    for inputs, attributes in cases:
        check(name, inputs, attributes)


@pytest.mark.parametrize("head", ["HeteroscedasticGaussianDistribution", "BetaDistribution"])
def test_sizes_stay_on_the_host(head, tmp_path):
    """On torch's device without values every read of one is an error; mjlab writes such a file."""
    path = write_onnx(trained(head).as_onnx(verbose=False), tmp_path / "a.onnx", opset_version=18)
    graph = onnx.load(path).graph
    assert {"Shape", "Concat", "Reshape"} <= {node.op_type for node in graph.node}
    network = OnnxNetwork(graph).to("meta")
    assert network(torch.empty(5, 7, device="meta")).shape == (5, 2)


def test_inputs_of_old_files_also_name_their_constants():
    model = graph_of("Mul", [X, ROW], {})
    model.graph.input.append(helper.make_tensor_value_info("i0", TensorProto.FLOAT, [1, 4]))
    network = OnnxNetwork(model.graph)
    assert network.width == 4
    assert torch.equal(network(torch.from_numpy(X)), torch.from_numpy(X * ROW))
