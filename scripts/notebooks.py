"""Write the notebooks of docs/tutorials from their pages: ``make docs``.

The Markdown page is the only source. A page that links to a notebook of its name gets it, with the
same text and commands. Notebooks are stored without outputs.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
RUNS = ("bash", "python")
"""Languages that become code cells; other blocks stay part of the text."""


class Block(NamedTuple):
    """Text between code blocks, or a code block without its fences."""

    language: str
    """As on the page, or ``"markdown"``."""
    text: str

    @property
    def file(self) -> str | None:
        """Name of the file that the block is saved as, if its first line is ``# name.py``."""
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found[1] if found and self.language == "python" else None

    @property
    def commands(self) -> list[str]:
        """Lines of a block of commands; a backslash continues a line."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [" ".join(line.split("  #")[0].split()) for line in lines if line.strip()]


def main() -> None:
    """Write the notebook of every page that has one."""
    for page in notebook_pages():
        page.with_suffix(".ipynb").write_text(notebook(page.read_text(encoding="utf-8")), "utf-8")


def notebook_pages() -> list[Path]:
    """Return the pages that link to a notebook of their name."""
    return [page for page in PAGES if f"]({page.stem}.ipynb)" in page.read_text(encoding="utf-8")]


def blocks(page: str) -> list[Block]:
    """Split a page's text into its blocks, in order."""
    found, end = list[Block](), 0
    for fenced in FENCED.finditer(page):
        found += [Block("markdown", page[end : fenced.start()]), Block(fenced[1], fenced[2])]
        end = fenced.end()
    return [*found, Block("markdown", page[end:])]


def notebook(page: str) -> str:
    """Return the notebook of a page's text, as JSON.

    Commands that install stay text: who opens the notebook has an environment.
    """
    cells, text = list[tuple[Any, str]](), ""
    for block in blocks(page):
        if block.language in RUNS and "pip install" not in block.text:
            cells += [(new_markdown_cell, text), (new_code_cell, _code(block))]
            text = ""
        else:
            fence = f"```{block.language}\n{block.text}```\n"
            text += block.text if block.language == "markdown" else fence
    cells.append((new_markdown_cell, text))
    filled = [(make, text.strip("\n")) for make, text in cells if text.strip("\n")]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = new_notebook(
        cells=[make(text, id=f"cell-{i:02}") for i, (make, text) in enumerate(filled)],
        metadata={"kernelspec": kernel, "language_info": {"name": "python"}},
    )
    return nbformat.writes(content) + "\n"


def _code(block: Block) -> str:
    """Return the source of a notebook's cell for a block."""
    if block.file:
        return f"%%writefile {block.text.removeprefix('# ')}"
    if block.language == "python":
        return block.text
    return "\n".join(f"!{command}" for command in block.commands)


if __name__ == "__main__":
    main()
