"""Print sizes of this repository: `make stats`. tests/test_structure.py has their limits.

Lines of code are the lines of Python files without blank lines, comments and docstrings; of
JavaScript, those that are neither blank nor a comment. The manual is docs/ without the studies.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rsl_tbptt"
CODE_IN_JS = re.compile(r"^ *(?!//)\S", re.MULTILINE)
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def main() -> None:
    """Print the sizes, one a line."""
    for name, size in sizes(ROOT).items():
        print(f"{size:6}  {name}")


def sizes(root: Path) -> dict[str, int]:
    """Return the sizes of a checkout by name."""
    inside = [path for path in sorted((root / PACKAGE).iterdir()) if any(path.rglob("*.py"))]
    folders = [root / PACKAGE, *inside, *(root / name for name in ("tasks", "tests", "scripts"))]
    files = [*(root / PACKAGE).rglob("*.py")]
    scripts = [page.read_text("utf-8") for page in (root / PACKAGE).rglob("*.js")]
    pages = [page for page in (root / "docs").rglob("*.md") if "studies" not in page.parts]
    return {
        f"files, {PACKAGE}": len(files),
        **{
            f"lines, {folder.relative_to(root)}": sum(map(lines_of_code, folder.rglob("*.py")))
            for folder in folders
        },
        "lines, JavaScript": sum(len(CODE_IN_JS.findall(text)) for text in scripts),
        "words, manual": sum(len(page.read_text("utf-8").split()) for page in pages),
        "lines, longest function": max(map(longest_function, files)),
    }


def lines_of_code(path: Path) -> int:
    """Return the number of lines of code of a file."""
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


def longest_function(path: Path) -> int:
    """Return the number of lines of a file's longest function, with its docstring."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, functions)]
    return max(((node.end_lineno or 0) - node.lineno + 1 for node in found), default=0)


if __name__ == "__main__":
    main()
