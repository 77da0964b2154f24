"""A test asks for ``engine``, ``cell`` and ``dtype``, and runs once for each that fits.

The Triton engine runs on the CPU as well, in Triton's interpreter.
``@pytest.mark.engines(name, ...)`` leaves those engines. Tests that do not ask for ``dtype`` are in
float64, those that do not ask for ``cell`` are of an LSTM.
"""

import itertools

import pytest
import torch
from support.triton_on_cpu import triton_engine_on_cpu

from rsl_tbptt.core import scan
from rsl_tbptt.core.scan import CELLS, ENGINES

DTYPES = (torch.float64, torch.float32)


def pytest_generate_tests(metafunc):
    """Give a test the engines, cells and dtypes that it asks for."""
    marker = metafunc.definition.get_closest_marker("engines")
    values = {"engine": marker.args if marker else ENGINES, "cell": CELLS, "dtype": DTYPES}
    asked = [name for name in values if name in metafunc.fixturenames]
    if asked:
        rows = itertools.product(*(values[name] for name in asked))
        indirect = ["engine"] if "engine" in asked else []
        metafunc.parametrize(asked, list(rows), indirect=indirect)


@pytest.fixture
def engine(request, device):
    """The name of an engine, in an interpreter where it cannot run on the device itself."""
    name = request.param
    if ENGINES[name].device in (None, device.type):
        yield name
    elif device.type != "cpu":
        pytest.skip(f"'{name}' runs on {ENGINES[name].device} alone")
    else:
        with triton_engine_on_cpu():
            yield name


@pytest.fixture(autouse=True)
def fresh(request):
    """Start with nothing chosen, on a device with products in full precision.

    With patches of its own: a test's are undone before those of ``engine``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_chosen", {})
        if request.config.getoption("--device") != "cpu":
            patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        yield
