"""Print sizes of this repository as one Markdown table: `make stats`.

Lines of code are those of Python files without blank lines, comments and docstrings.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import UnionType

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rsl_tbptt"
FOLDERS = (PACKAGE, "tasks", "scripts", "tests")
LONGEST = 3
"""Classes and functions that are named."""
SUPPRESSIONS = ("noqa", "type: ignore", "pyright: ignore")
SHAPE = re.compile(r"(?i:\bshape|\bscalar)|\((?:[A-Z]\w*|\d+|\.\.\.)(?:,| \*)")
"""What names a shape in a docstring: the word, or such as (T, N) or (N * T, D)."""
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function
Named = tuple[str, Definition]


def main() -> None:
    """Print the table; with `--without-shapes`, the functions whose docstrings name no shape."""
    if "--without-shapes" in sys.argv[1:]:
        print("\n".join(without_shapes(ROOT)))
    else:
        print(tabulate(table(ROOT), ("what", "number"), tablefmt="github", disable_numparse=True))


def table(root: Path) -> list[tuple[str, str]]:
    """Count.

    Args:
        root: Of the checkout.

    Returns:
        Names and values.
    """
    lines, rows = lines_by_folder(root), []
    rows += [(f"lines of code, {folder}", f"{number}") for folder, number in lines.items()]
    for what, kind in (("class", ast.ClassDef), ("function", Function)):
        rows += [(f"longest {what}", longest) for longest in longest_of(root, kind)]
    for kind, number in suppressions(root).items():
        per_thousand = f"{number}, {1000 * number / lines[PACKAGE]:.1f} per 1000 lines of code"
        rows.append((f"suppressions in {PACKAGE}, {kind}", per_thousand))
    rows.append(("public functions with tensors and no shape", f"{len(without_shapes(root))}"))
    return rows


def lines_by_folder(root: Path) -> dict[str, int]:
    """Return lines of code by folder, and by folder of the package."""
    inside = sorted(path for path in (root / PACKAGE).iterdir() if path.is_dir())
    folders = {f"{PACKAGE}/{path.name}": path for path in inside}
    folders = {PACKAGE: root / PACKAGE, **folders, **{name: root / name for name in FOLDERS[1:]}}
    sums = {name: sum(map(_lines, path.rglob("*.py"))) for name, path in folders.items()}
    return {name: number for name, number in sums.items() if number}


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


def longest_of(root: Path, kind: type | UnionType) -> list[str]:
    """Return the longest definitions of a kind in the package: lines and name."""
    found = [(_length(node), name) for name, node in definitions(root) if isinstance(node, kind)]
    return [f"{lines}, {name}" for lines, name in sorted(found, reverse=True)[:LONGEST]]


def _length(node: Definition) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def suppressions(root: Path) -> dict[str, int]:
    """Return how many comments of the package silence a checker, by kind."""
    comments = [
        token.string
        for path in (root / PACKAGE).rglob("*.py")
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        if token.type == tokenize.COMMENT
    ]
    by_kind = {kind: sum(f"# {kind}" in comment for comment in comments) for kind in SUPPRESSIONS}
    return by_kind | {"all": sum(by_kind.values())}


def without_shapes(root: Path) -> list[str]:
    """Return the public functions that take or return tensors and say of no shape."""
    return [
        name
        for name, node in definitions(root)
        if isinstance(node, Function)
        and not any(part.startswith(("_", "<")) for part in re.split(r"[.:]", name))
        and _has_tensors(node)
        and not SHAPE.search(ast.get_docstring(node) or "")
    ]


def _has_tensors(function: Function) -> bool:
    of = function.args
    arguments = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
    hints = [function.returns, *(argument.annotation for argument in arguments if argument)]
    return any(re.search(r"\bTensor\b", ast.unparse(hint)) for hint in hints if hint)


def definitions(root: Path) -> Iterator[Named]:
    """Yield all classes and functions of the package, named as in ``core/file.py:Class.method``."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        place = path.relative_to(root / PACKAGE).as_posix()
        yield from _inside(ast.parse(path.read_text(encoding="utf-8")), f"{place}:")


def _inside(node: ast.AST, prefix: str) -> Iterator[Named]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            name = f"{prefix}{child.name}"
            yield name, child
            inside = ".<locals>" if isinstance(child, Function) else ""
            yield from _inside(child, f"{name}{inside}.")
        else:
            yield from _inside(child, prefix)


if __name__ == "__main__":
    main()
