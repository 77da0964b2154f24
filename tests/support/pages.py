"""Run pages: each command by its comment, and tutorials with files, code and expected outputs."""

import contextlib
import io
import os
import re
import shlex
import string
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.notebooks import ROOT, blocks

TUTORIALS = ROOT / "docs" / "tutorials"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DIFFERENCE = re.compile(r"largest difference (?:of .* )?(\d\S*?),?(?:\s|$)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")

Program = Callable[[str], str]
"""Runs a command line and returns its output."""


@dataclass(frozen=True)
class Command:
    """A command of a page."""

    words: list[str]
    environment: dict[str, str]


def command_lines(page: str) -> Iterator[tuple[str, str]]:
    """Yield a page's commands, with its variables filled in, and the comment behind each."""
    variables = {}
    for block in blocks(page):
        text = block.text.replace("\\\n", " ") if block.language == "bash" else ""
        for line in filter(None, text.splitlines()):
            if assignment := re.fullmatch(r'(\w+)="(.*)"', line):
                variables[assignment[1]] = assignment[2]
            else:
                command, _, comment = line.partition("  # ")
                yield string.Template(command).safe_substitute(variables), comment


def commands(page: str) -> dict[str, Command]:
    """Return a page's commands by their comments; each has one of its own."""
    found = {}
    for line, comment in command_lines(page):
        words = shlex.split(line)
        program = next(i for i, word in enumerate(words) if "=" not in word)
        assert comment, line
        assert comment not in found, comment
        environment = dict(word.split("=") for word in words[:program])
        found[comment] = Command(words[program:], environment)
    return found


def follow(name: str, programs: dict[str, Program], quoted: str = "") -> dict[str, str]:
    """Follow a tutorial from its first to its last line, in the working directory.

    Python blocks share one session. Each line of an expected output has to be in the output of the
    block before it; numbers may differ.

    Args:
        name: The page.
        programs: Functions that run commands, by their first word; others run in the shell. ``pip``
            and ``mkdir`` are skipped, because tests have an environment and a folder.
        quoted: Text of files that the page quotes; these Python blocks are not run.

    Returns:
        The output of each command, by its line on the page.
    """
    programs = {"pip": lambda _: "", "mkdir": lambda _: ""} | programs
    quoted = _without_indents(quoted)
    session, outputs, printed = {"__name__": "session"}, {}, ""
    for block in blocks((TUTORIALS / name).read_text(encoding="utf-8")):
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language in ("python", "toml") and _without_indents(block.text) in quoted:
            continue
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, name, "exec"), session)
            printed = out.getvalue()
        elif block.language == "bash":
            ran = {line: programs.get(line.split()[0], shell)(line) for line in block.commands}
            outputs |= ran
            printed = "\n".join(ran.values())
        elif block.language == "text":
            assert not (missing := lines_missing(block.text, printed)), f"{missing}\n{printed}"
        else:
            assert block.language == "markdown", f"{name}: nothing checks\n{block.text}"
    return outputs


def lines_missing(expected: str, printed: str) -> list[str]:
    """Return the expected lines that were not printed, with any numbers and spaces."""
    there = {_without_numbers(line) for line in COLOUR.sub("", printed).splitlines()}
    lines = [line for line in expected.splitlines() if line.strip() not in ("", "...")]
    return [line for line in lines if _without_numbers(line) not in there]


def _without_indents(text: str) -> str:
    return "\n".join(map(str.strip, text.splitlines()))


def _without_numbers(line: str) -> str:
    return NUMBER.sub("0", " ".join(line.split()))


def shell(line: str) -> str:
    """Run a command line in the shell; it has to succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-ec", line],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def rsl_tbptt(
    run: Callable[[list[str]], tuple[int, str]], episodes: int, overrides: Sequence[str]
) -> Program:
    """Return a function that runs ``rsl-tbptt``, which fails only with a difference that it prints.

    Args:
        run: Function of the arguments that returns the exit status and the output.
        episodes: Episodes of each evaluation.
        overrides: Extra settings of the task for evaluations.
    """

    def command(line: str) -> str:
        words = arguments(line)
        if words[0] == "evaluate":
            words[1:1] = ["--episodes", str(episodes)]
            if overrides:
                words += overrides if "--overrides" in words else ["--overrides", *overrides]
        status, printed = run(words)
        differences = [float(text) for text in DIFFERENCE.findall(printed)]
        assert (status == 0) == all(each <= 1e-4 for each in differences), printed
        return printed

    return command


def arguments(line: str) -> list[str]:
    """Return the program's arguments, with patterns replaced by the newest matching file.

    The tests' trainings have one iteration, so their checkpoints have other names than the page's.
    """
    found = []
    for word in shlex.split(line)[1:]:
        if "*" in word:
            pattern = re.sub(r"model_\d+", "model_0", word)
            word = str(max(Path().glob(pattern), key=os.path.getmtime).resolve())
        found.append(word)
    return found


def build_wheel(package: Path) -> Path:
    """Build a package's wheel in its folder; a path with the wheel imports the package."""
    code = "from setuptools import build_meta; build_meta.build_wheel('.')"
    subprocess.run([sys.executable, "-c", code], cwd=package, check=True, capture_output=True)
    (wheel,) = package.glob("*.whl")
    return wheel
