"""Write the tables of options in README and docs from the code: ``make docs``.

Marks in a page choose its tables: the options of one algorithm, those that both share, some options
in the given order, or the arguments of every command of ``rsl-tbptt``. The text between two marks
is replaced::

    <!-- options: distillation gradient_length update_length -->
    <!-- end -->

    <!-- commands -->
    <!-- end -->
"""

import argparse
import ast
import inspect
import itertools
import os
import re
import textwrap
from collections import Counter
from dataclasses import fields
from pathlib import Path

from rsl_tbptt.algorithms.options import DistillationOptions, Options, PpoOptions
from rsl_tbptt.tools.commands.cli import command_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONS = {"distillation": DistillationOptions, "ppo": PpoOptions, "shared": Options}
MARKED = re.compile(r"(<!-- options: (\w+)([\w ]*) -->\n).*?(<!-- end -->)", re.DOTALL)
COMMANDS = re.compile(r"(<!-- commands -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Rewrite the tables of every page."""
    for page in PAGES:
        page.write_text(with_tables(page.read_text(), page))


def with_tables(text: str, page: Path) -> str:
    """Return a page's text with new tables.

    Args:
        text: The page with its old tables.
        page: The page's file, which links are relative to.
    """

    def table(found: re.Match[str]) -> str:
        start, owner, names, end = found.groups()
        shown = re.findall(r"^\| `(\w+)` \|", found.group(), re.MULTILINE)
        listed = [name for name in shown if name in own_options(owner)]  # a page keeps its order
        listed += [name for name in own_options(owner) if name not in shown]
        return start + option_table(owner, names.split() or listed, page.parent) + end

    def sections(found: re.Match[str]) -> str:
        start, end = found.groups()
        return start + command_sections(page.parent) + end

    return COMMANDS.sub(sections, MARKED.sub(table, text))


def own_options(owner: str) -> list[str]:
    """Name the options of a key of ``OPTIONS``, without those that algorithms share."""
    shared = set() if owner == "shared" else {each.name for each in fields(Options)}
    return [each.name for each in fields(OPTIONS[owner]) if each.name not in shared]


def option_table(owner: str, names: list[str], folder: Path) -> str:
    """Return a table of options.

    Args:
        owner: A key of ``OPTIONS``.
        names: Names of the options. An empty list means all of the owner but the shared ones.
        folder: Folder of the page.
    """
    options = OPTIONS[owner]
    meanings, defaults = docstrings(options), options()
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name in names or own_options(owner):
        value = getattr(defaults, name)
        default = f'`"{value}"`' if isinstance(value, str) else repr(value)
        rows.append(f"| `{name}` | {default} | {_in_markdown(meanings[name], folder)} |")
    return "\n".join(rows) + "\n"


def command_sections(folder: Path) -> str:
    """Return a section for each command of ``rsl-tbptt``: its description and arguments.

    Args:
        folder: Folder of the page.
    """
    arguments = {
        name: [
            f"- `{_usage(argument)}`: {_meaning(argument, folder)}"
            for argument in parser._actions
            if not isinstance(argument, argparse._HelpAction)
        ]
        for name, parser in commands().items()
    }
    counts = Counter(itertools.chain(*arguments.values()))
    shared = [line for line, count in counts.items() if count > 2]
    sections = ["\n".join(["## Shared arguments\n", *shared])]
    for name, parser in commands().items():
        description = escaped(_in_markdown(parser.description or "", folder))
        lines = [line for line in arguments[name] if line not in shared]
        flags = re.findall(r"^- `(--[\w-]+)", "\n".join(set(arguments[name]) & {*shared}), re.M)
        if flags:
            lines.append(f"- shared: `{' '.join(sorted(flags))}`")
        sections.append("\n\n".join([f"## {name}", description, "\n".join(lines)]))
    return "\n" + "\n\n".join(sections) + "\n\n"


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by name."""
    (found,) = (
        action.choices
        for action in command_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(found)


def escaped(text: str) -> str:
    """Escape ``<`` outside of code, where Markdown would take it for the start of a tag."""
    pieces = text.split("`")
    return "`".join(each if i % 2 else each.replace("<", "\\<") for i, each in enumerate(pieces))


def _usage(argument: argparse.Action) -> str:
    """Return an argument as the user types it: a flag, or with the value's name or choices."""
    if argument.nargs == 0:
        value = ""
    elif argument.choices:
        value = "{" + ",".join(map(str, argument.choices)) + "}"
    else:
        value = str(argument.metavar or argument.dest.upper())
    return " ".join((*argument.option_strings, value)).strip()


def _meaning(argument: argparse.Action, folder: Path) -> str:
    """Return an argument's help, with "(required)" if it is."""
    text = escaped(_in_markdown(argument.help or "", folder))
    return f"{text} (required)".strip() if argument.required else text


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
