"""The package is small, and its modules import each other in one direction."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from scripts.ci.stats import PACKAGE, ROOT, sizes

LIMITS = {
    "files, rsl_tbptt": 95,
    "lines, rsl_tbptt": 11_499,
    "lines, rsl_tbptt/tools": 3_009,
    "lines, rsl_tbptt/algorithms": 3_946,
    "lines, tests": 17_978,
    "lines, scripts": 2_585,
    "lines, tasks": 1_604,
    "lines, JavaScript": 349,
    "words, manual": 16_855,
    "lines, longest function": 60,
}
"""Largest sizes, as `make stats` counts them. Where one does not suffice, something else goes."""
WINGS = {"platforms": 0, "simulate": 1, "robot": 2, "commands": 3}
"""Heights of the folders of the tools: each imports lower ones only."""


def modules(root: Path) -> dict[str, Path]:
    """Return the files of the package in a checkout, by dotted name."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((root / PACKAGE).rglob("*.py"))
    }


def imports(root: Path) -> dict[str, set[str]]:
    """Return the modules that each imports: also in functions, and for type checkers only."""
    files = modules(root)
    found = {}
    for name, path in files.items():
        names = {
            dotted
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for dotted in _imported(node, set(files))
        }
        found[name] = names - {name}
    return found


def _imported(node: ast.Import | ast.ImportFrom, names: set[str]) -> set[str]:
    """Return imported modules; for ``from package import module`` the module, not the package."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & names
    modules = {f"{node.module}.{alias.name}" for alias in node.names} & names
    others = len(node.names) > len(modules)
    return modules | ({node.module} & names if others and node.module else set())


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of a circular import, or an empty result."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def package_of(module: str) -> str:
    """Return the folder below the package that a module lies in, or the module."""
    return ".".join(module.split(".")[:2])


def mutual(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the pairs of packages that import each other."""
    pairs = {
        (package_of(a), package_of(b))
        for a, imported in graph.items()
        for b in imported
        if PACKAGE not in (a, b)
    }
    return {frozenset(pair) for pair in pairs if pair[0] != pair[1] and pair[::-1] in pairs}


def upward(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the imports from a folder of the tools to another one that is not lower."""

    def wing(module: str) -> str:
        return module.removeprefix(f"{PACKAGE}.tools.").partition(".")[0]

    pairs = {(a, b) for a, imported in graph.items() for b in imported}
    return {
        (a, b)
        for a, b in pairs
        if {wing(a), wing(b)} <= WINGS.keys() and wing(a) != wing(b)
        if WINGS[wing(a)] <= WINGS[wing(b)]
    }


def test_modules_import_each_other_in_one_direction():
    graph = imports(ROOT)
    assert circle(graph) == []
    assert mutual(graph) == set()
    assert upward(graph) == set()


@pytest.mark.parametrize(
    "second",
    [
        "def f():\n    from rsl_tbptt.a.one import f",
        "if TYPE_CHECKING:\n    from rsl_tbptt.a.one import f",
    ],
)
def test_the_checks_can_fail(tmp_path, second):
    for name, text in (("a/one", "from rsl_tbptt.b import two"), ("b/two", second)):
        path = tmp_path / PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    graph = imports(tmp_path)
    assert circle(graph)
    assert mutual(graph)
    lower, higher = (f"{PACKAGE}.tools.{name}" for name in ("simulate.play", "robot.export"))
    assert upward({lower: {higher}}) == {(lower, higher)}
    assert upward({higher: {lower}}) == set()


def test_nothing_is_larger_than_its_limit():
    measured = sizes(ROOT)
    assert {name: measured[name] for name in LIMITS if measured[name] > LIMITS[name]} == {}


def test_sizes_are_those_by_hand(tmp_path):
    files = {
        "rsl_tbptt/core/one.py": '''"""Two lines
of docstring."""

import torch  # one, and a comment

class Policy:
    gamma = 0.9
    """An attribute's docstring."""

    def act(self): return """no
docstring"""

    @property
    def _rate(self):
        """Four lines, two of them code."""

        return [
            1]
''',
        "rsl_tbptt/tools/page.js": "// a comment\n\nconst x = 1; // one\n",
        "scripts/one.py": "# a comment\nx = 1\n",
        "docs/howto/page.md": "# Two words\n",
        "docs/studies/page.md": "# Not in the manual\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sizes(tmp_path) == {
        "files, rsl_tbptt": 1,
        "lines, rsl_tbptt": 9,
        "lines, rsl_tbptt/core": 9,
        "lines, tasks": 0,
        "lines, tests": 0,
        "lines, scripts": 1,
        "lines, JavaScript": 1,
        "words, manual": 3,
        "lines, longest function": 5,
    }
