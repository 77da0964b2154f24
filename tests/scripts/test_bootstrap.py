"""The bootstrap on machines that lack things, played with small stand-ins for uv and Python."""

import shutil
import subprocess

import pytest

TOOLS = ("bash", "dirname", "ls", "mkdir", "cat", "chmod", "cp")

UV = """#!/bin/bash
echo "uv $*" >> "$LOG"
case "$1 $2" in
  "--version "*) echo uv 1 ;;
  "python find") [ -n "${UV_FINDS:-}" ] && echo "$UV_FINDS" ;;
  "python install") [ -n "${UV_FETCHES:-}" ] ;;
  "build --quiet") mkdir -p "$4" && : > "$4/package.whl" ;;
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

SHIM = "#!/bin/bash\necho 'pyenv: version not selected' >&2; exit 127\n"


class Machine:
    """A checkout and a PATH that holds nothing but what a test puts there."""

    def __init__(self, folder, script):
        self.folder = folder
        self.checkout = folder / "checkout"
        self.script = self.checkout / "scripts" / "ci" / "bootstrap.sh"
        self.script.parent.mkdir(parents=True)
        shutil.copy(script, self.script)
        self.bin = folder / "bin"
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

    def calls(self):
        return self.log.read_text().splitlines()

    def venv_python(self):
        """Return the interpreter that uv was told to make the environment with."""
        venv = [call.split() for call in self.calls() if call.startswith("uv venv")]
        assert len(venv) == 1
        return venv[0][venv[0].index("--python") + 1]


@pytest.fixture
def machine(tmp_path, repository):
    return Machine(tmp_path, repository / "scripts" / "ci" / "bootstrap.sh")


def only_line(result):
    """Return the error of a failed bootstrap without its progress messages."""
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if " is missing; " not in line]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_all_on_path(machine):
    machine.put(machine.bin / "uv", UV)
    python = machine.put(machine.bin / "python3.12", PYTHON.format(version="3.12"))
    result = machine.run("environment")
    assert result.returncode == 0, result.stderr
    assert machine.venv_python() == str(python)
    install = machine.calls()[-1]
    assert "--constraint constraints.txt --constraint constraints-main.txt" in install
    assert install.endswith("--editable .[isaaclab,wandb,demo,dev]")


def test_missing_uv_is_installed_beside_the_checkout(machine):
    machine.put(machine.bin / "python3", PYTHON.format(version="3.11"))
    machine.put(machine.bin / "python3.12", PYTHON.format(version="3.12"))
    result = machine.run("environment")
    assert result.returncode == 0, result.stderr
    assert machine.calls()[0] == "pip -m pip install --quiet --target .venv-uv uv"
    assert (machine.checkout / ".venv-uv" / "bin" / "uv").exists()


def test_broken_shims_are_passed_over(machine):
    """Pyenv puts shims on PATH for versions that are not selected; they fail when called."""
    machine.put(machine.bin / "uv", SHIM)
    machine.put(machine.bin / "python3.12", SHIM)
    machine.put(machine.bin / "python3", SHIM)
    pyenv = machine.folder / "home" / ".pyenv" / "versions"
    machine.put(pyenv / "3.11.7" / "bin" / "python3", PYTHON.format(version="3.11"))
    python = machine.put(pyenv / "3.12.1" / "bin" / "python3", PYTHON.format(version="3.12"))
    result = machine.run("environment")
    assert result.returncode == 0, result.stderr
    assert machine.venv_python() == str(python)


def test_pyenv_root_elsewhere(machine):
    machine.put(machine.bin / "uv", UV)
    root = machine.folder / "elsewhere"
    python = machine.put(root / "versions/3.12.9/bin/python3", PYTHON.format(version="3.12"))
    machine.put(machine.bin / "pyenv", f"#!/bin/bash\necho {root}\n")
    assert machine.run("environment").returncode == 0
    assert machine.venv_python() == str(python)


def test_uv_knows_a_python(machine):
    machine.put(machine.bin / "uv", UV)
    assert machine.run("environment", UV_FINDS="known/python").returncode == 0
    assert machine.venv_python() == "known/python"
    assert not any("python install" in call for call in machine.calls())


def test_uv_is_asked_to_fetch_last(machine):
    machine.put(machine.bin / "uv", UV)
    machine.run("environment", UV_FETCHES="yes")
    calls = [call for call in machine.calls() if call.startswith("uv python")]
    assert calls == [
        "uv python find --no-python-downloads 3.12",
        "uv python install 3.12",
        "uv python find 3.12",
    ]


def test_no_python_says_in_one_line_what_to_install(machine):
    machine.put(machine.bin / "uv", UV)
    line = only_line(machine.run("environment"))
    assert "found no Python 3.12" in line
    assert "install Python 3.12" in line


def test_nothing_at_all_says_in_one_line_what_to_install(machine):
    line = only_line(machine.run("environment"))
    assert "install uv, or python3 with pip" in line


def test_environment_of_another_python_is_left_alone(machine):
    machine.put(machine.bin / "uv", UV)
    machine.put(machine.checkout / ".venv" / "bin" / "python", PYTHON.format(version="3.11"))
    line = only_line(machine.run("environment"))
    assert ".venv holds another Python, expected 3.12" in line
    assert (machine.checkout / ".venv" / "bin" / "python").exists()


def test_environment_that_fits_is_kept(machine):
    machine.put(machine.bin / "uv", UV)
    machine.put(machine.checkout / ".venv" / "bin" / "python", PYTHON.format(version="3.12"))
    assert machine.run("environment").returncode == 0
    assert not any(call.startswith("uv venv") for call in machine.calls())


@pytest.mark.parametrize("version", [None, "3.10", "3.13"])
def test_mjlab_runs_on_the_python_that_is_asked_for(machine, version):
    machine.put(machine.bin / "uv", UV)
    for found in ("3.10", "3.12", "3.13"):
        machine.put(machine.bin / f"python{found}", PYTHON.format(version=found))
    chosen = {"PYTHON": version} if version else {}
    assert machine.run("environment", "mjlab", **chosen).returncode == 0
    assert machine.venv_python() == str(machine.bin / f"python{version or '3.12'}")
    install = machine.calls()[-1]
    assert "--python .venv-mjlab/bin/python" in install
    assert "--constraint constraints-mjlab.txt" in install
    assert install.endswith("--editable .[mjlab,demo,dev]")


def test_mjlab_refuses_another_python(machine):
    line = only_line(machine.run("environment", "mjlab", PYTHON="3.9"))
    assert line == "bootstrap: PYTHON is '3.9', expected 3.10, 3.11, 3.12 or 3.13."


def test_isaaclab2_comes_without_what_no_registry_holds(machine):
    machine.put(machine.bin / "uv", UV)
    python = machine.put(machine.bin / "python3.11", PYTHON.format(version="3.11"))
    assert machine.run("environment", "isaaclab2").returncode == 0
    assert machine.venv_python() == str(python)
    *_, install, alone = machine.calls()
    assert "--editable .[isaaclab2,dev] gymnasium" in install
    assert alone.endswith("--python .venv-isaaclab2/bin/python --no-deps isaaclab==2.3.2.post1")


def test_environment_in_another_folder(machine):
    machine.put(machine.bin / "uv", UV)
    machine.put(machine.bin / "python3.12", PYTHON.format(version="3.12"))
    assert machine.run("environment", VENV="other", EXTRAS="dev").returncode == 0
    assert "--python other/bin/python" in machine.calls()[-1]
    assert machine.calls()[-1].endswith("--editable .[dev]")


def test_unknown_environment_is_refused(machine):
    assert "the environment is 'other', expected" in only_line(machine.run("environment", "other"))


def test_package_is_installed_from_its_wheel(machine):
    machine.put(machine.bin / "uv", UV)
    machine.put(machine.bin / "python3.12", PYTHON.format(version="3.12"))
    folder = machine.folder / "package"
    assert machine.run("package", str(folder)).returncode == 0
    assert f"uv build --quiet --out-dir {folder}/dist" in machine.calls()
    install = machine.calls()[-1]
    assert f"--python {folder}/venv/bin/python" in install
    assert install.endswith(f"{folder}/dist/package.whl")


def test_older_rsl_rl_comes_alone(machine):
    machine.put(machine.bin / "uv", UV)
    assert machine.run("rsl_rl", "5.0.1").returncode == 0
    install = machine.calls()[-1]
    assert "--no-deps --target .rsl_rl/5.0.1 rsl-rl-lib==5.0.1" in install


def test_a_torch_lies_aside_and_moves_nothing_else(machine):
    machine.put(machine.bin / "uv", UV)
    (machine.bin / "grep").symlink_to(shutil.which("grep"))
    (machine.checkout / "constraints.txt").write_text("numpy==1\ntorch==2\ntorchvision==3\n")
    assert machine.run("torch", "2.15.0").returncode == 0
    install = machine.calls()[-1]
    assert "--target .torch/2.15.0 --constraint - torch==2.15.0" in install


def test_unknown_command_is_refused(machine):
    assert "the command is 'other', expected" in only_line(machine.run("other"))
