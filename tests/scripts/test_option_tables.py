"""The tables of options: those in README and docs are what the code says."""

import dataclasses

import pytest

from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from scripts.option_tables import MARKED, PAGES, ROOT, docstrings, option_table, with_tables


@pytest.mark.parametrize("page", [page for page in PAGES if MARKED.search(page.read_text())])
def test_the_tables_of_a_page_are_those_of_the_code(page):
    assert with_tables(page.read_text(), page) == page.read_text(), "run `make docs`"


def test_every_option_of_each_algorithm_is_in_the_docs():
    tables = [found.groups() for page in PAGES for found in MARKED.finditer(page.read_text())]
    assert {algorithm for _, algorithm, names, _ in tables if not names.strip()} == {
        "distillation",
        "ppo",
    }


def test_a_table_follows_the_code(tmp_path):
    before = "a\n<!-- options: ppo gamma -->\nold\n<!-- end -->\nb"
    table = "| option | default | meaning |\n|---|---|---|\n"
    row = "| `gamma` | 0.99 | Discount factor per environment step. |\n"
    after = f"a\n<!-- options: ppo gamma -->\n{table}{row}<!-- end -->\nb"
    assert with_tables(before, tmp_path / "page.md") == after


def test_links_go_from_the_page_and_old_names_are_left_out():
    assert "[distillation.md](docs/distillation.md#scan-" in option_table("ppo", [], ROOT)
    assert "[distillation.md](distillation.md#scan-" in option_table("ppo", [], ROOT / "docs")


@pytest.mark.parametrize("options", [DistillationOptions, PpoOptions])
def test_every_option_says_first_in_one_line_what_it_is(options):
    """Command lines show that line on its own."""
    meanings = docstrings(options)
    for field in dataclasses.fields(options):
        first, *rest = meanings[field.name].split("\n")
        assert first.endswith("."), field.name
        assert not rest or not rest[0], field.name
