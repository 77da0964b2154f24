"""Extend Sphinx for the site: links out of docs/, cards, Markdown next to pages, llms.txt, MathML.

docs/conf.py loads it. Each build has to read all pages, because docstrings are not cached.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#\s:]+)((?:#[^)\s]*)?)\)")
TOPICS = re.compile(r"(?:^- \*\*.+:\*\* .+\n(?:  .+\n)*)+", re.MULTILINE)
"""A list on the front page whose items begin with a bold title."""
TOPIC = re.compile(r"^- \*\*(.+?):\*\* (.+\n(?:  .+\n)*)", re.MULTILINE)
RST = re.compile(r"^```\{eval-rst\}\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
FOLDERS = {
    "tutorials": "Tutorials",
    "howto": "How-to",
    "concepts": "Concepts",
    "reference": "Reference",
    "studies": "Studies",
}
"""Folders of docs/ in the order of the sidebar, with their headings in llms.txt."""

docstrings: dict[str, list[str]] = {}
"""The docstrings that autodoc shows, by full name, in the order of the pages."""
signatures: dict[str, str] = {}
"""Signatures of the documented names that can be called."""


def with_repository_links(text: str, folder: Path, docs: Path) -> str:
    """Make links to files outside docs/ and to folders work, which are not pages.

    Args:
        text: A page's Markdown.
        folder: The page's folder.
        docs: The folder of all pages.

    Returns:
        The text with such links replaced by URLs: of the repository on GitHub in its workflow, of
        this checkout elsewhere.
    """
    repository = os.environ.get("GITHUB_REPOSITORY")
    root = f"https://github.com/{repository}/tree/HEAD" if repository else ROOT.as_uri()

    def replace(link: re.Match[str]) -> str:
        path = (folder / link[1]).resolve()
        a_page_or_its_file = path.is_relative_to(docs) and not path.is_dir()
        if a_page_or_its_file or not path.is_relative_to(ROOT) or not path.exists():
            return link[0]
        return f"]({root}/{path.relative_to(ROOT).as_posix()}{link[2]})"

    return LINK.sub(replace, text)


def with_cards(text: str) -> str:
    """Replace the front page's list of topics by cards, which GitHub would not show."""
    card = "```{grid-item-card} \\1\n\\2```\n"

    def grid(topics: re.Match[str]) -> str:
        return f"````{{grid}} 1 2 2 3\n:gutter: 2\n\n{TOPIC.sub(card, topics[0])}````\n"

    return TOPICS.sub(grid, text)


def contents_of(index: Path, docs: Path) -> str:
    """Return the directive that puts pages into the sidebar, in the order of an index's links.

    So index pages need no directive in their text, which reads better on GitHub.

    Args:
        index: The front page or the index.md of a folder.
        docs: The folder of all pages.
    """
    folder = index.parent
    if folder == docs:
        first = [f"{name}/index" for name in FOLDERS]
    else:
        first = re.findall(r"\]\((\w+)\.md[)#]", index.read_text(encoding="utf-8"))
    others = sorted(page.stem for page in folder.glob("*.md") if page != index)
    pages = [name for name in dict.fromkeys([*first, *others]) if (folder / f"{name}.md").is_file()]
    return "\n".join(["\n\n```{toctree}", ":hidden:", "", *pages, "```", ""])


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Change a page's Markdown before Sphinx parses it."""
    docs = Path(app.srcdir)
    page = docs / f"{name}.md"
    source[0] = with_repository_links(source[0], page.parent, docs)
    if page.parent == docs:
        source[0] = with_cards(source[0])
    if page.stem == "index":
        source[0] += contents_of(page, docs)


def mark_options(app: Sphinx, doctree: nodes.document) -> None:
    """Give tables of options a class, by which they are cards on a phone."""
    for table in doctree.findall(nodes.table):
        if table.astext().split()[:1] == ["option"]:
            table["classes"].append("options")


def note_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, args: str | None, returns: str | None
) -> tuple[str, str] | None:
    """Keep a signature for the Markdown of the page; configs get none, as their fields follow."""
    if what == "class" and name.endswith("Cfg"):
        return "", ""
    signature = (args or "") + (f" -> {returns}" if returns else "")
    signatures[name] = re.sub(r"~(\w+\.)+", "", signature)
    return None


def note_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keep a docstring unchanged for the Markdown of the page."""
    if any(lines):  # a class's own comes first, then its constructor's
        docstrings.setdefault(name, []).extend([*lines, ""])


def markdown_of(name: str, docs: Path) -> str:
    """Return a page as Markdown for programs, with docstrings in place of autodoc directives."""
    page = docs / f"{name}.md"

    def replace(directive: re.Match[str]) -> str:
        documented = re.findall(r":: (rsl_tbptt\S+)", directive[1])
        shown = [
            f"### `{each}{signatures.get(each, '')}`\n\n" + "\n".join(lines)
            for top in documented
            for each, lines in docstrings.items()
            if each == top or each.startswith(f"{top}.")
        ]
        return "\n".join(shown)

    text = with_repository_links(page.read_text(encoding="utf-8"), page.parent, docs)
    return RST.sub(replace, text)


def write_markdown(app: Sphinx, error: Exception | None) -> None:
    """Write the Markdown of each page next to its HTML, and llms.txt, which lists them.

    The list has the form of https://llmstxt.org: a title, a summary, and links under headings.
    """
    if error or app.builder.name != "html":
        return
    env, url = app.env, app.config.html_baseurl
    lines = dict.fromkeys(sorted(env.found_docs), "")
    for name in lines:
        target = Path(app.outdir, f"{name}.md")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(markdown_of(name, Path(app.srcdir)), encoding="utf-8")
        first = next(env.get_doctree(name).findall(nodes.paragraph), None)
        text = " ".join(first.astext().split()) if first else ""
        summary = re.split(r"(?<=[.?!]) ", text)[0].rstrip(":")
        title = env.titles[name].astext()
        lines[name] = f"- [{title}]({url}{name}.md)" + (f": {summary}" if summary else "")
    text = [f"# {app.config.project}", f"> {lines.pop('index').partition('): ')[2]}"]
    for folder, heading in FOLDERS.items():
        inside = [line for name, line in lines.items() if name.rpartition("/")[0] == folder]
        text += [f"## {heading}", "\n".join(inside)]
    Path(app.outdir, "llms.txt").write_text("\n\n".join(text) + "\n", encoding="utf-8")


def visit_inline(translator: Any, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers draw without a script.

    Raises:
        SkipNode: Always, because the formula is complete.
    """
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on its own line; it scrolls if it is wider than the page.

    Raises:
        SkipNode: Always, because the formula is complete.
    """
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions above."""
    app.connect("source-read", read_page)
    app.connect("doctree-read", mark_options)
    app.connect("autodoc-process-signature", note_signature)
    app.connect("autodoc-process-docstring", note_docstring, priority=0)  # before napoleon
    app.connect("build-finished", write_markdown)
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": False, "parallel_write_safe": True}
