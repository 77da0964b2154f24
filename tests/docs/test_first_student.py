"""docs/tutorials/first_student.md and its notebook, run from the first line to the last."""

import json
import os
import re
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from support.pages import TUTORIALS, lines_missing

from scripts.notebooks import blocks, notebook, notebook_pages

PAGE = (TUTORIALS / "first_student.md").read_text()
POLICIES = ("teacher", "student", "memoryless")


@pytest.fixture(scope="module")
def returns(tmp_path_factory):
    """Run the notebook, which has the page's text and commands; return mean returns by policy."""
    folder = tmp_path_factory.mktemp("rail")
    cells = nbformat.read(TUTORIALS / "first_student.ipynb", as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        nbclient.NotebookClient(cells, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in cells.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in outputs)
    expected = "".join(block.text for block in blocks(PAGE) if block.language == "text")
    assert not lines_missing(expected, printed)
    assert (folder / "bundle" / "policy.onnx").is_file()
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
