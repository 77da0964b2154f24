"""docs/tutorials/first_student.md and its notebook, run from the first line to the last."""

import contextlib
import importlib.util
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from support.tutorial_pages import TUTORIALS, follow, lines_missing, rsl_tbptt

from rsl_tbptt.tools.commands.cli import main
from scripts.notebooks import blocks, notebook, notebook_pages

PAGE = (TUTORIALS / "first_student.md").read_text()
POLICIES = ("teacher", "student", "memoryless")

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit")]


@pytest.fixture(scope="module")
def returns(tmp_path_factory):
    """Mean returns by policy after the notebook ran, or the page if no notebook can run here."""
    folder = tmp_path_factory.mktemp("rail")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        if importlib.util.find_spec("nbclient"):
            run_notebook(patch, folder)
        else:
            patch.syspath_prepend(folder)
            torch.manual_seed(0)
            follow("first_student.md", {"rsl-tbptt": rsl_tbptt(here)})
    sys.modules.pop("rail", None)
    assert (folder / "bundle" / "policy.onnx").is_file()
    return mean_returns(folder)


def run_notebook(patch, folder):
    """Run the notebook, which has the page's text and commands, and compare its output."""
    import nbclient
    import nbformat

    patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    cells = nbformat.read(TUTORIALS / "first_student.ipynb", as_version=4)
    nbclient.NotebookClient(cells, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in cells.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in outputs)
    expected = "".join(block.text for block in blocks(PAGE) if block.language == "text")
    assert not lines_missing(expected, printed)


def here(words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = main(words)
    return status, out.getvalue()


def mean_returns(folder):
    files = [folder / "logs" / name / "evaluation.json" for name in POLICIES]
    return [json.loads(file.read_text())["mean_return"] for file in files]


def claims_hold(returns):
    teacher, student, memoryless = returns
    return student > 0.9 * teacher and memoryless < 0.7 * teacher


@pytest.mark.long
def test_the_task_needs_memory(returns):
    assert claims_hold(returns), returns


@pytest.mark.long
def test_the_table_has_the_results_of_the_page(returns):
    rows = re.findall(r"^\| (?:teacher|student).* (\d\.\d\d) \|$", PAGE, re.MULTILINE)
    shown = [float(row) for row in rows]
    assert len(shown) == len(POLICIES)
    assert claims_hold(shown)
    assert returns == pytest.approx(shown, abs=0.5)


def test_a_missing_line_of_output_is_detected():
    assert lines_missing("loss: 0.5\n...\n", "loss:  1e-05\n") == []
    assert lines_missing("loss: 0.5\n", "gain: 0.5\n") == ["loss: 0.5"]


@pytest.mark.parametrize("page", notebook_pages(), ids=lambda page: page.stem)
def test_a_notebook_is_made_from_its_page(page):
    made = page.with_suffix(".ipynb").read_text()
    assert made == notebook(page.read_text()), "run `make docs`"
