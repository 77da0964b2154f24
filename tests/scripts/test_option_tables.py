"""The tables of options and commands in README and docs are those that the code gives."""

import dataclasses
import re

import pytest

from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from scripts.option_tables import COMMANDS, MARKED, OPTIONS, PAGES, docstrings, with_tables


def has_tables(page):
    text = page.read_text()
    return MARKED.search(text) or COMMANDS.search(text)


@pytest.mark.parametrize("page", [page for page in PAGES if has_tables(page)])
def test_the_tables_of_a_page_are_those_of_the_code(page):
    assert with_tables(page.read_text(), page) == page.read_text(), "run `make docs`"


@pytest.mark.parametrize("algorithm", ["distillation", "ppo"])
def test_every_option_of_each_algorithm_is_in_the_docs_once(algorithm):
    tables = "".join(
        found.group()
        for page in PAGES
        for found in MARKED.finditer(page.read_text())
        if found.group(2) in {algorithm, "shared"} and not found.group(3)
    )
    shown = re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)
    assert sorted(shown) == sorted(field.name for field in dataclasses.fields(OPTIONS[algorithm]))


def test_a_table_follows_the_code(tmp_path):
    before = "a\n<!-- options: ppo gamma -->\nold\n<!-- end -->\nb"
    table = "| option | default | meaning |\n|---|---|---|\n"
    row = "| `gamma` | 0.99 | Discount factor per environment step. |\n"
    after = f"a\n<!-- options: ppo gamma -->\n{table}{row}<!-- end -->\nb"
    assert with_tables(before, tmp_path / "page.md") == after


@pytest.mark.parametrize("options", [DistillationOptions, PpoOptions])
def test_every_options_docstring_starts_with_a_one_line_summary(options):
    """Command lines show only that line."""
    meanings = docstrings(options)
    for field in dataclasses.fields(options):
        first, *rest = meanings[field.name].split("\n")
        assert first.endswith("."), field.name
        assert not rest or not rest[0], field.name
