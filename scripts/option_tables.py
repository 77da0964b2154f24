"""Write the tables of options in README and docs from the options themselves: ``make docs``.

A page says what it shows, all options of an algorithm or some, in its own order; what stands
between the marks is replaced::

    <!-- options: distillation gradient_length update_length -->
    <!-- end -->
"""

import ast
import inspect
import itertools
import os
import re
import textwrap
from pathlib import Path

from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONS = {"distillation": DistillationOptions, "ppo": PpoOptions}
MARKED = re.compile(r"(<!-- options: (\w+)([\w ]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Rewrite the tables of every page."""
    for page in PAGES:
        page.write_text(with_tables(page.read_text(), page))


def with_tables(text: str, page: Path) -> str:
    """Return a page's text with its tables made anew.

    Args:
        text: The page, whatever its tables say.
        page: Where it stands, from where its links go.
    """

    def table(found: re.Match[str]) -> str:
        start, algorithm, names, end = found.groups()
        return start + option_table(algorithm, names.split(), page.parent) + end

    return MARKED.sub(table, text)


def option_table(algorithm: str, names: list[str], folder: Path) -> str:
    """Return a table of options.

    Args:
        algorithm: Whose options.
        names: Which ones. None for all, the algorithm's own before the shared ones.
        folder: Folder of the page.
    """
    options = OPTIONS[algorithm]
    meanings, defaults = docstrings(options), options()
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name in names or meanings:
        value = getattr(defaults, name)
        default = f'`"{value}"`' if isinstance(value, str) else repr(value)
        rows.append(f"| `{name}` | {default} | {_in_markdown(meanings[name], folder)} |")
    return "\n".join(rows) + "\n"


def _in_markdown(docstring: str, folder: Path) -> str:
    """Return a docstring as a cell of a table, with links from ``folder`` to the pages it names."""
    text = " ".join(docstring.split()).replace("``", "`").replace("|", "\\|")

    def link(found: re.Match[str]) -> str:
        path, name, anchor = found.groups(default="")
        return f"[{name}]({os.path.relpath(ROOT / path, folder)}{anchor})"

    return re.sub(r"(docs/(?:\w+/)*(\w+\.md))(#[\w-]+)?", link, text)


def docstrings(cls: type) -> dict[str, str]:
    """Return the text below each field of a dataclass, a subclass's fields before its parents'."""
    found: dict[str, str] = {}
    for base in cls.__mro__[:-1]:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found.setdefault(name, inspect.cleandoc(text))
    return found


if __name__ == "__main__":
    main()
