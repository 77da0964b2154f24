"""The suite reads the registry: a test asks for ``engine``, ``cell`` and ``dtype`` by name.

A test runs once for each engine on ``--device``. What is made for CUDA runs on the CPU as well, on
stand-ins for its kernels. ``@pytest.mark.engines(field=value)`` leaves those engines whose entries
say so, or, for a set, say one of it. Tests that do not ask for ``dtype`` are in float64, those that
do not ask for ``cell`` are of an LSTM, and neither gets engines that do not run it.
"""

import pytest
import torch
from support.fused_cells import ON_STAND_INS, cuda_engines_on_cpu
from support.triton_kernels import torchrl_on_cpu

from rsl_tbptt.core.scan import CELLS, ENGINES, selection
from rsl_tbptt.core.scan.cuda import graphs

STAND_INS = {**dict.fromkeys(ON_STAND_INS, cuda_engines_on_cpu), "torchrl": torchrl_on_cpu}
"""What lets an engine run on the CPU that is not made for it."""

DTYPES = (torch.float64, torch.float32)


def pytest_generate_tests(metafunc):
    """Give a test the engines, cells and dtypes that it asks for."""
    asked = [name for name in ("engine", "cell", "dtype") if name in metafunc.fixturenames]
    if "engine" in asked:
        device = torch.device(metafunc.config.getoption("--device"))
        marker = metafunc.definition.get_closest_marker("engines")
        fields = marker.kwargs if marker else {}
        rows = [
            pytest.param(*(row[name] for name in asked), id=identity(row, asked), marks=marks)
            for row, marks in rows_of(device, asked, fields)
        ]
        metafunc.parametrize(asked, rows, indirect=["engine"])
    elif "cell" in asked:
        metafunc.parametrize("cell", CELLS.values(), ids=list(CELLS))


def rows_of(device, asked, fields):
    """Yield the engines with these fields, their cells and dtypes, and why they cannot run."""
    for engine in ENGINES.values():
        if not all(matches(getattr(engine, name), wanted) for name, wanted in fields.items()):
            continue
        marks = [pytest.mark.skip(reason=reason)] if (reason := missing(engine, device)) else []
        for name in engine.cells if "cell" in asked else {"lstm"} & engine.cells.keys():
            for dtype in DTYPES if "dtype" in asked else [torch.float64]:
                if not engine.dtypes or dtype in engine.dtypes:
                    yield {"engine": engine.name, "cell": CELLS[name], "dtype": dtype}, marks


def matches(value, wanted):
    """Return whether a field has the value, or one of the set, that is wanted."""
    return value in wanted if isinstance(wanted, set) else value == wanted


def missing(engine, device):
    """Return why an engine does not run here, None if it does."""
    if engine.devices and device.type not in engine.devices:
        if device.type == "cpu" and engine.name in STAND_INS:
            return None
        return f"'{engine.name}' runs on {' and '.join(engine.devices)} alone"
    return None if engine.is_available() else f"'{engine.name}' lacks what it needs"


def identity(row, asked):
    """Return how a test's row is called on the command line."""
    names = {
        "engine": row["engine"],
        "cell": row["cell"].name,
        "dtype": str(row["dtype"]).removeprefix("torch."),
    }
    return "-".join(names[name] for name in asked)


@pytest.fixture
def engine(request, device):
    """An entry of the registry, on stand-ins where it cannot run on the device itself."""
    engine = ENGINES[request.param]
    if not engine.devices or device.type in engine.devices:
        yield engine
        return
    with STAND_INS[engine.name]():
        yield ENGINES[engine.name]


@pytest.fixture(autouse=True)
def full_precision(request, monkeypatch):
    """On a device let cuDNN, which all engines follow there, multiply float32 in full precision."""
    if request.config.getoption("--device") != "cpu":
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Start with nothing chosen and nothing recorded."""
    monkeypatch.setattr(selection, "_chosen", {})
    monkeypatch.setattr(graphs, "_pool", graphs.Pool(10_000))
