"""docs/my_task: a package of 130 lines, installed, trained and evaluated as the guide says."""

import json
import re

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from support.isaaclab_page import DOCS, PAGE

PACKAGE = DOCS / "my_task"


def test_the_package_has_at_most_130_lines():
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 130


@pytest.mark.parametrize("agent", ["MyStudentCfg", "MyRecurrentCfg"])
def test_its_agents_are_exactly_the_guides(agent):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (block,) = [block for block in blocks if f"class {agent}" in block]
    assert block.split("\n\n\n")[1] in (PACKAGE / "my_task" / "agents.py").read_text()


@pytest.mark.isaaclab
def test_its_student_was_trained_from_its_teacher(page):
    teacher = torch.load(page("your teacher").checkpoint, weights_only=True)
    student = torch.load(page("your student").checkpoint, weights_only=True)
    assert student["student_state_dict"]["rnn.rnn.weight_ih_l0"].shape[1] == 2  # no velocities
    loaded, trained = student["teacher_state_dict"], teacher["actor_state_dict"]
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)


@pytest.mark.isaaclab
def test_a_task_without_physics_presets_is_evaluated_by_the_checkpoint_alone(
    page, isaaclab, tmp_path
):
    """The task comes from the run, and no preset is selected that the task does not have."""
    words = ["evaluate", "--checkpoint", str(page("your student").checkpoint), "--episodes", "4"]
    status, printed = isaaclab.call(
        "rsl_tbptt.tools.commands.cli:main", [*words, "--output", str(tmp_path / "e")]
    )
    assert status == 0, printed
    evaluation = json.loads((tmp_path / "e").read_text())
    assert (evaluation["task"], evaluation["episodes"]) == ("my_task", 4)
