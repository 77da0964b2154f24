"""Print sizes of this repository as one Markdown table: `make stats`.

Lines of code are the lines of Python files without blank lines, comments and docstrings.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rsl_tbptt"
LONGEST = 3
"""Number of longest classes and functions in the table."""
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def main() -> None:
    """Print the table."""
    print(tabulate(table(ROOT), ("what", "number"), tablefmt="github", disable_numparse=True))


def table(root: Path) -> list[tuple[str, str]]:
    """Return names and values of the sizes of a checkout."""
    inside = sorted(path for path in (root / PACKAGE).iterdir() if path.is_dir())
    folders = [root / PACKAGE, *inside, *(root / name for name in ("tasks", "scripts", "tests"))]
    rows = []
    for folder in folders:
        if number := sum(map(_lines, folder.rglob("*.py"))):
            name = folder.relative_to(root).as_posix()
            rows.append((f"lines of code, {name}", f"{number}"))
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
