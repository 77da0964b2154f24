"""The README's code runs, and what it names exists."""

import re
from pathlib import Path

import pytest
import torch
from support.helpers import make_distillation, make_ppo, roll_out, roll_out_ppo

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_python_block_runs_and_shows_that_the_student_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    block, for_release_3 = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert for_release_3.startswith("# rsl_rl 3.1.2\n")  # which runs with that release
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    names["runner"].logger.writer.close()  # its thread would go on writing, relative to elsewhere
    losses = re.findall(r"Mean behavior loss: (\S+)", capsys.readouterr().out)
    assert len(losses) == 10
    assert float(losses[-1]) < float(losses[0])


@pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")
def test_every_metric_is_in_the_readme():
    distillation = make_distillation(
        TbpttDistillation, 4, 2, gradient_length=2, teacher_action_share=0.5
    )
    roll_out(distillation, 0)
    ppo = make_ppo(TbpttPPO, 4, 2, num_mini_batches=1)
    roll_out_ppo(ppo, 0)
    for name in (*distillation.update(), *ppo.update()):
        named, slash, _ = name.partition("obs_scale/")  # one for every role and group
        in_words = f"{named}{slash}ROLE/GROUP" if slash else name
        assert f"`Loss/{in_words}`" in README, name


def test_installations_on_the_pages_work_where_they_are_typed():
    """By pip, which is in every environment that make builds, from this folder or a registry."""
    tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert any(requirement.startswith("pip>") for requirement in extras["dev"])
    pages = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    text = "".join(page.read_text() for page in pages)
    assert not re.search("uv pip|rsl-tbptt\\[|install rsl-tbptt", text)
    targets = [line.strip(' "') for line in re.findall("pip install ([^`#\n]*)", text)]
    folders = {target for target in targets if re.match("-e|[.]", target)}
    extras_alone = {".[isaaclab,tools]", ".[mjlab,tools]", ".[tools]", ".[deploy]"}
    assert folders == extras_alone | {"-e .", "-e docs/my_task"}
    assert {name for found in folders for name in re.findall("\\w+(?=[],])", found)} <= {*extras}
    assert (ROOT / "docs/my_task/pyproject.toml").is_file()


def test_linked_files_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
