"""The bootstrap with small stand-ins for uv and Python."""

import shutil
import subprocess

import pytest

TOOLS = ("bash", "dirname", "ls", "mkdir", "cat", "chmod", "cp")

UV = """#!/bin/bash
echo "uv $*" >> "$LOG"
case "$1 $2" in
  "--version "*) echo uv 1 ;;
  "python find") false ;;
esac
"""
PYTHON = """#!/bin/bash
case "$*" in *version_info*) echo {version} ;; esac
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
        self.put(self.bin / "uv", UV)
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
        places = {"PATH": self.bin, "HOME": self.folder / "home", "LOG": self.log}
        return subprocess.run(
            [self.script, "environment", *command],
            env={**{name: str(path) for name, path in places.items()}, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, start=""):
        return [call for call in self.log.read_text().splitlines() if call.startswith(start)]


@pytest.fixture
def machine(tmp_path, repository):
    return Machine(tmp_path, repository / "scripts" / "ci" / "bootstrap.sh")


@pytest.mark.parametrize(
    ("command", "variables", "python", "words"),
    [
        ("", {}, "3.12", "constraints-main.txt --editable .[isaaclab,wandb,demo,dev,docs]"),
        ("", {"VENV": "other", "EXTRAS": "dev"}, "3.12", "--python other/bin/python"),
        ("mjlab", {"PYTHON": "3.10"}, "3.10", "constraints-mjlab.txt --editable .[mjlab,demo,dev]"),
        # without its dependencies, which no registry has
        ("isaaclab2", {}, "3.11", "--no-deps isaaclab==2.3.2.post1"),
    ],
)
def test_an_environment_has_its_python_constraints_and_extras(
    machine, command, variables, python, words
):
    pythons = {version: machine.put_python(version) for version in ("3.10", "3.11", "3.12")}
    result = machine.run(*command.split(), **variables)
    assert result.returncode == 0, result.stderr
    (venv,) = machine.calls("uv venv")
    assert venv.split()[venv.split().index("--python") + 1] == pythons[python]
    assert words in machine.calls()[-1]


def test_a_fitting_environment_is_kept_and_another_is_refused(machine):
    python = machine.checkout / ".venv" / "bin" / "python"
    machine.put_python("3.12", python)
    assert machine.run().returncode == 0
    machine.put_python("3.11", python)
    result = machine.run()
    assert result.returncode == 1
    assert ".venv holds another Python, expected 3.12" in result.stderr
    assert python.exists()
    assert not machine.calls("uv venv")


def test_extra_releases_do_not_change_the_environment(machine):
    machine.put_uv()
    (machine.bin / "grep").symlink_to(shutil.which("grep"))
    (machine.checkout / "constraints.txt").write_text("numpy==1\ntorch==2\ntorchvision==3\n")
    for command in ("rsl_rl 5.0.1", "torch 2.15.0", "libtorch 2.3.0"):
        assert machine.run(*command.split()).returncode == 0
    rsl_rl, torch, libtorch = machine.calls("uv pip install")
    assert "--no-deps --target .rsl_rl/5.0.1 rsl-rl-lib==5.0.1" in rsl_rl
    assert "--target .torch/2.15.0 --constraint - torch==2.15.0" in torch
    assert "--no-deps --target .libtorch/2.3.0 torch==2.3.0 nvidia-" in libtorch
