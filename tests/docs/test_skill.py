"""skills/rsl-tbptt/SKILL.md: its form, and that what it names exists."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from rsl_tbptt.tools.commands.cli import command_parser

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "rsl-tbptt" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
CODE = re.findall(r"`([^`]+)`", TEXT)


def test_the_header_says_when_to_use_it():
    _, header, body = TEXT.split("---\n", 2)
    found = yaml.safe_load(header)
    assert found["name"] == SKILL.parent.name
    assert "Use when" in found["description"]
    assert len(found["description"]) <= 1024  # more is refused by programs that load skills
    assert f'license = "{found["license"]}"' in (ROOT / "pyproject.toml").read_text()
    assert "## When To Use" in body


@pytest.mark.parametrize("command", [code for code in CODE if code.startswith("rsl-tbptt ")])
def test_its_commands_have_these_arguments(command):
    words = command.split()[1:]
    if words != ["COMMAND", "--help"]:
        command_parser().parse_args(words)


def defined(name):
    """Return whether a dotted name is a module's class, without importing the module."""
    module, _, last = name.replace(":", ".").rpartition(".")
    path = ROOT / module.replace(".", "/")
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return any(getattr(node, "name", None) == last for node in nodes)


@pytest.mark.parametrize("name", re.findall(r"rsl_tbptt\.[\w.:]+[A-Z]\w+", TEXT))
def test_its_classes_exist(name):
    assert defined(name)


def test_its_links_lead_to_pages():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT)
    assert links
    for link in links:
        assert (SKILL.parent / link).is_file(), link
