"""The README's code runs, and the files that it names exist."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_python_block_runs_and_shows_that_the_student_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    for runner in (names["teacher"], names["runner"]):
        runner.logger.writer.close()  # its thread would go on writing elsewhere
    losses = re.findall(r"Mean behavior loss: (\S+)", capsys.readouterr().out)
    assert len(losses) == 10
    assert float(losses[-1]) < float(losses[0])


def test_installations_on_the_pages_work_in_their_folder():
    """Installations use pip, which every environment of make has, or uv, from this folder."""
    tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert any(requirement.startswith("pip>") for requirement in extras["dev"])
    pages = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    text = "".join(page.read_text() for page in pages)
    targets = [line.strip(' "') for line in re.findall("pip install ([^`#\n]*)", text)]
    published = [target for target in targets if target.startswith("rsl-tbptt")]
    assert all(" @ " in target for target in published)  # not in any registry
    folders = {target for target in targets if re.match("-e|[.]", target)}
    platforms = ("envpool", "isaaclab", "isaaclab2", "mjlab")
    extras_alone = {*(f".[{name},tools]" for name in platforms), ".[tools]", ".[deploy]"}
    assert folders == extras_alone | {"-e .", "-e examples/task_isaaclab"}
    assert {name for found in folders for name in re.findall("\\w+(?=[],])", found)} <= {*extras}
    assert (ROOT / "examples/task_isaaclab/pyproject.toml").is_file()


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_linked_files_exist(page):
    path = ROOT / page
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text())
    assert links
    for link in links:
        assert (path.parent / link).exists(), link


def test_the_readme_is_short():
    assert len(README.split()) <= 1200


def commands_in(text):
    """Return the commands of a page's blocks and lines, without comments."""
    text = text.replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"```(?:bash|diff)\n(.*?)```", text, flags=re.DOTALL))
    lines = [line.split(" # ")[0] for line in blocks.splitlines()]
    inline = re.findall(r"`((?:rsl-tbptt|pip|make) [^`]*)`", text)
    return {" ".join(line.split()) for line in (*lines, *inline)} - {""}


def test_the_chinese_page_has_the_commands_of_the_english_ones():
    pages = [README, *(page.read_text() for page in (ROOT / "docs").rglob("*.md"))]
    known = set().union(*map(commands_in, pages))
    options = {word for command in known for word in command.split() if word.startswith("--")}
    chinese = commands_in((ROOT / "README.zh-CN.md").read_text())
    assert chinese >= commands_in(README)
    for command in chinese:
        words = command.split()
        assert {word for word in words if word.startswith("--")} <= options, command
        assert any(other.split()[:2] == words[:2] for other in known), command
