"""Print sizes of this repository as one Markdown table: `make stats`.

Lines of code are the lines of Python files without blank lines, comments and docstrings.
`python -m scripts.ci.stats --write` writes the table into CONTRIBUTING.md instead, and
tests/scripts/test_stats.py keeps the sizes from growing beyond it.
"""

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rsl_tbptt"
MARK = "<!-- stats -->\n"
"""What CONTRIBUTING.md has in front of the table, with which it ends."""
LONGEST = 3
"""Number of longest classes and functions in the table."""
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def main() -> None:
    """Print the table, or write it into CONTRIBUTING.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into CONTRIBUTING.md")
    write = parser.parse_args().write
    text = tabulate(table(ROOT), ("what", "number"), tablefmt="github", disable_numparse=True)
    if write:
        page = ROOT / "CONTRIBUTING.md"
        before = page.read_text(encoding="utf-8").partition(MARK)[0]
        page.write_text(f"{before}{MARK}{text}\n", encoding="utf-8")
    else:
        print(text)


def sizes(page: str) -> dict[str, int]:
    """Return the numbers of a page's table by name; of the longest ones the longest."""
    rows = re.findall(r"^\| ([\w ,/]+?) +\| (\d+)", page.partition(MARK)[2], re.MULTILINE)
    return {name: int(number) for name, number in reversed(rows)}


def table(root: Path) -> list[tuple[str, str]]:
    """Return names and values of the sizes of a checkout."""
    inside = sorted(path for path in (root / PACKAGE).iterdir() if path.is_dir())
    folders = [root / PACKAGE, *inside, *(root / name for name in ("tasks", "scripts", "tests"))]
    rows = []
    for folder in folders:
        if number := sum(map(_lines, folder.rglob("*.py"))):
            name = folder.relative_to(root).as_posix()
            rows.append((f"lines of code, {name}", f"{number}"))
    rows.append((f"Python files, {PACKAGE}", f"{len([*(root / PACKAGE).rglob('*.py')])}"))
    words = sum(len(path.read_text("utf-8").split()) for path in (root / "docs").rglob("*.md"))
    rows.append(("words, docs", f"{words}"))
    for what, kinds in (
        ("class", ast.ClassDef),
        ("function", (ast.FunctionDef, ast.AsyncFunctionDef)),
    ):
        found = [
            ((node.end_lineno or 0) - node.lineno + 1, name)
            for path in (root / PACKAGE).rglob("*.py")
            for name, node in _definitions(
                ast.parse(path.read_text(encoding="utf-8")),
                f"{path.relative_to(root / PACKAGE).as_posix()}:",
            )
            if isinstance(node, kinds)
        ]
        longest = sorted(found, reverse=True)[:LONGEST]
        rows += [(f"longest {what}", f"{lines}, {name}") for lines, name in longest]
    return rows


def _lines(path: Path) -> int:
    source = path.read_text(encoding="utf-8")
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE and token.string:
            used.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                used.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(used)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield all classes and functions of a file, named as in ``core/file.py:Class.method``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
            yield from _definitions(child, f"{prefix}{child.name}.")
        else:
            yield from _definitions(child, prefix)


if __name__ == "__main__":
    main()
