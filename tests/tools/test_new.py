"""The command ``rsl-tbptt new``, and the policies of its package for rsl_rl alone."""

import contextlib
import io
import json
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from support.new_package import readme_commands

from rsl_tbptt.runners import TbpttDistillationRunner
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.commands.new import FILES
from rsl_tbptt.tools.platforms import PLATFORMS

ROOT = Path(__file__).parents[2]
NAME = "rail_cart"


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


@pytest.fixture(scope="module", params=PLATFORMS)
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "parent" / "folder"
    assert main(["new", NAME, "--platform", request.param, "--output", str(folder)]) == 0
    return folder


def test_the_package_has_its_name_and_no_other(package):
    files = contents(package)
    assert {"pyproject.toml", "README.md", f"{NAME}/__init__.py", f"{NAME}/env.py"} <= set(files)
    assert not any("my_task" in text for text in [*files, *files.values()])
    assert f'name = "{NAME}"' in files["pyproject.toml"]


def test_the_package_is_installed_with_its_modules(package, tmp_path):
    source = shutil.copytree(package, tmp_path / "source")  # building leaves files behind
    code = "from setuptools import build_meta; build_meta.build_wheel('.')"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (wheel,) = source.glob(f"{NAME}-0.1.0-*.whl")
    built = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert built == {name for name in contents(package) if name.endswith(".py")}


def test_without_output_the_folder_has_the_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", NAME, "--platform", "rsl_rl"]) == 0
    assert capsys.readouterr().out == f"wrote {NAME}, whose README.md has its commands\n"
    assert (tmp_path / NAME / NAME / "env.py").is_file()


@pytest.mark.parametrize("name", ["", "2fast", "my-task", "a/b", "class"])
def test_a_name_that_python_or_pip_cannot_take_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "--platform", "rsl_rl", "--", name]) == 1
    expected = f"NAME is {name!r}, expected a Python identifier such as my_task"
    assert expected in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["Torch", "rsl_rl_lib", "json"])
def test_a_name_of_another_package_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", name, "--platform", "rsl_rl"]) == 1
    expected = f"NAME is '{name}', expected one that no package has"
    assert expected in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_exists_is_refused_and_stays(kind, tmp_path, capsys):
    output = tmp_path / "output"
    if kind == "folder":
        output.mkdir()
    elif kind == "file":
        output.touch()
    else:
        output.symlink_to(tmp_path / "nowhere")
    words = ["new", NAME, "--platform", "rsl_rl", "--output", str(output)]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert f"The output is {output}, expected a folder that does not exist yet" in error
    assert [*tmp_path.rglob("*")] == [output]


def test_a_full_disk_leaves_no_half_package(tmp_path, monkeypatch, capsys):
    write = Path.write_text

    def full(path, *arguments, **options):
        if path.name == "agents.py":
            raise OSError(28, "No space left on device")
        return write(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    output = tmp_path / "output"
    assert main(["new", NAME, "--platform", "isaaclab", "--output", str(output)]) == 1
    error = capsys.readouterr().err
    assert error == f"rsl-tbptt new: [Errno 28] No space left on device: '{output}'\n"
    assert not [*tmp_path.iterdir()]


def test_the_wheel_holds_what_the_command_copies():
    tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    data = project["tool"]["setuptools"]["package-data"]["rsl_tbptt"]
    prefix = "tools/commands/new_task/*/"
    assert {name for name in data if name.startswith(prefix)} == {prefix + name for name in FILES}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder in which the commands of the README ran, and a student without memory."""
    folder = tmp_path_factory.mktemp("rsl_rl")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["new", NAME, "--platform", "rsl_rl"]) == 0
        patch.syspath_prepend(folder / NAME)
        for line in readme_commands(folder / NAME):
            run(patch, line.split())
        train_without_memory()
        run(patch, f"rsl-tbptt evaluate --checkpoint logs/memoryless/latest {ENV}".split())
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]
    return folder


ENV = f"--env {NAME}.env:make"


def run(patch, words):
    """Run a command of the README in this process, which has loaded torch."""
    program, *arguments = words
    with contextlib.redirect_stdout(io.StringIO()):
        if program == "rsl-tbptt":
            assert main(arguments) == 0
        else:
            assert (program, arguments[0]) == ("python", "-m")
            patch.setattr(sys, "argv", arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__")


def train_without_memory():
    """Train the student's config with an MLP in place of its LSTM."""
    names = runpy.run_module(f"{NAME}.train")
    config = {**names["STUDENT"], "student": names["TEACHER"]["actor"]}
    runner = TbpttDistillationRunner(names["MyEnv"](128), config, "logs/memoryless")
    with contextlib.redirect_stdout(io.StringIO()):
        runner.learn(40, init_at_random_ep_len=True)


@pytest.mark.long
def test_the_readme_of_rsl_rl_trains_and_evaluates_policies_and_its_student_needs_memory(trained):
    files = {path.parent.name: path for path in trained.glob("logs/*/evaluation.json")}
    returns = {name: json.loads(path.read_text())["mean_return"] for name, path in files.items()}
    assert set(returns) == {"teacher", "student", "recurrent", "finetune", "memoryless"}
    assert returns["recurrent"] > 0.9 * returns["teacher"]
    assert returns["student"] > 0.93 * returns["teacher"], returns
    assert returns["memoryless"] < 0.7 * returns["teacher"], returns
    path = trained / "logs" / "finetune" / "model_199.pt"
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["rsl_tbptt"]["fine_tuning"]["num_updates"] == 200
    assert returns["finetune"] > returns["student"], returns
