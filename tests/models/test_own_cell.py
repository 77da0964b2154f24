"""The cell of docs/reference/models.md, as printed, learns the recall task."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.perfect_teacher import learned
from support.safe_runs import model_cfg
from support.scan_cases import assert_all_close, make_case, values_and_gradients
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.core.scan import CELLS, register

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"


@pytest.fixture
def cell():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "MGU = Cell(" in block)
    assert len(code.splitlines()) <= 40
    before, module = dict(CELLS), ModuleType("my_cells")
    exec(code, vars(module))
    sys.modules["my_cells"] = module
    register(module.MGU)
    yield "my_cells:MGU"
    del sys.modules["my_cells"]
    CELLS.clear()
    CELLS.update(before)


@pytest.mark.usefixtures("cell")
def test_its_engine_is_generated():
    case = make_case("MGU", 2, 6, 3, 0.3)
    expected = values_and_gradients(*case, "reference")
    assert_all_close(values_and_gradients(*case, "compiled"), expected, **EXACT_FLOAT64)


def test_it_learns_to_remember(cell):
    model = "rsl_tbptt.models:RecurrentModel"
    student = model_cfg(model, hidden_dims=[16], rnn_type=cell, rnn_hidden_dim=16)
    options: dict[str, Any] = {"gradient_length": 12, "learning_rate": 5e-3}
    options["scan_engine"] = "compiled"
    assert learned(student, recall_length=8, num_steps=24, iterations=60, **options) > 0.8
