"""The bootstrap on machines that lack programs, with small stand-ins for uv and Python."""

import shutil
import subprocess

import pytest

from scripts.ci.stats import ROOT

TOOLS = ("bash", "dirname", "ls", "mkdir", "cat", "chmod", "cp")

UV = """#!/bin/bash
echo "uv $*" >> "$LOG"
case "$1 $2" in
  "--version "*) echo uv 1 ;;
  "python "*) exit 1 ;;
esac
"""

PYTHON = """#!/bin/bash
case "$*" in
  *version_info*) echo {version} ;;
  "-m pip install --quiet --target "*)
    echo "pip $*" >> "$LOG"
    mkdir -p "$6/bin" && cp "$UV_IN_STORE" "$6/bin/uv" ;;
esac
"""


class Machine:
    """A checkout and a PATH with only the programs that a test puts there."""

    def __init__(self, folder, script):
        self.folder, self.checkout, self.bin = folder, folder / "checkout", folder / "bin"
        self.script = self.checkout / "scripts" / "ci" / "bootstrap.sh"
        self.script.parent.mkdir(parents=True)
        shutil.copy(script, self.script)
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.put(folder / "store" / "uv", UV)
        self.log = folder / "log"
        self.log.touch()

    def put(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def put_python(self, version, path=None):
        path = path or self.bin / f"python{version}"
        return str(self.put(path, PYTHON.format(version=version)))

    def run(self, *command, **variables):
        environment = {
            "PATH": str(self.bin),
            "HOME": str(self.folder / "home"),
            "LOG": str(self.log),
            "UV_IN_STORE": str(self.folder / "store" / "uv"),
        }
        return subprocess.run(
            [self.script, *command],
            env=environment | variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, start=""):
        return [call for call in self.log.read_text().splitlines() if call.startswith(start)]

    def venv_python(self):
        """Return the interpreter that uv was told to make the environment with."""
        (venv,) = self.calls("uv venv")
        return venv.split()[venv.split().index("--python") + 1]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path, ROOT / "scripts" / "ci" / "bootstrap.sh")


def only_line(result):
    """Return the error of a failed bootstrap without its progress messages."""
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if " is missing; " not in line]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("command", "variables", "python", "words"),
    [
        ("", {}, "3.12", "constraints-main.txt --editable .[isaaclab,wandb,demo,dev,docs]"),
        ("", {"VENV": "other", "EXTRAS": "dev"}, "3.12", "--python other/bin/python"),
        ("mjlab", {"PYTHON": "3.10"}, "3.10", "constraints-mjlab.txt --editable .[mjlab,demo,dev]"),
        ("playground", {}, "3.12", "constraints-playground.txt --editable .[tools,dev] playground"),
        # without its dependencies, which no registry has
        ("isaaclab2", {}, "3.11", "--no-deps isaaclab==2.3.2.post1"),
    ],
)
def test_an_environment_has_its_python_constraints_and_extras(
    machine, command, variables, python, words
):
    pythons = {version: machine.put_python(version) for version in ("3.10", "3.11", "3.12")}
    machine.put_python("3.11", machine.bin / "python3")
    result = machine.run("environment", *command.split(), **variables)
    assert result.returncode == 0, result.stderr
    assert machine.calls()[0] == "pip -m pip install --quiet --target .venv-uv uv"  # as uv lacks
    assert (machine.checkout / ".venv-uv" / "bin" / "uv").exists()
    assert machine.venv_python() == pythons[python]
    assert words in machine.calls()[-1]


def test_a_missing_program_is_reported_in_one_line(machine):
    assert "install uv, or python3 with pip" in only_line(machine.run("environment"))
    machine.put(machine.bin / "uv", UV)
    line = only_line(machine.run("environment"))
    assert "found no Python 3.12" in line
    assert "install Python 3.12" in line


def test_a_fitting_environment_is_kept_and_another_is_refused(machine):
    machine.put(machine.bin / "uv", UV)
    python = machine.checkout / ".venv" / "bin" / "python"
    machine.put_python("3.12", python)
    assert machine.run("environment").returncode == 0
    machine.put_python("3.11", python)
    line = only_line(machine.run("environment"))
    assert ".venv holds another Python, expected 3.12" in line
    assert python.exists()
    assert not machine.calls("uv venv")
