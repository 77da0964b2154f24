"""What a user installs: the packages, their data and entry points, and nothing else."""

import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")

ROOT = Path(__file__).parents[1]
FOLDERS = {"rsl_tbptt": "rsl_tbptt", "rsl_tbptt_tasks": "tasks"}

SMOKE = """
import importlib.resources
from importlib.metadata import entry_points

import rsl_tbptt, rsl_tbptt_tasks

groups = ("isaaclab.tasks", "mjlab.tasks")
print(*(f"{point.name}={point.value}" for group in groups for point in entry_points(group=group)))
print(rsl_tbptt.__file__, rsl_tbptt_tasks.__file__)
print(importlib.resources.files("rsl_tbptt_tasks").joinpath("isaaclab/assets/cartpole.usda").is_file())
"""


def files_in_checkout(pattern: str) -> set[str]:
    """Return what a pattern matches below the packages, under its installed name."""
    return {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob(pattern)
    }


def test_every_package_is_listed():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = pyproject["tool"]["setuptools"]["packages"]
    inits = files_in_checkout("__init__.py")
    assert sorted(listed) == sorted(init.rpartition("/")[0].replace("/", ".") for init in inits)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with sdist and wheel, and an environment that holds the wheel alone."""
    folder = tmp_path_factory.mktemp("package")
    subprocess.run([ROOT / "scripts" / "ci" / "bootstrap.sh", "package", folder], check=True)
    return folder


def expected_files():
    found = set().union(*map(files_in_checkout, ("*.py", "*.c", "*.usda", "py.typed")))
    assert {"rsl_tbptt/py.typed", "rsl_tbptt_tasks/isaaclab/assets/cartpole.usda"} < found
    return found


@pytest.mark.package
def test_wheel_holds_the_packages_and_nothing_else(built):
    [wheel] = (built / "dist").glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    assert {name for name in names if ".dist-info/" not in name} == expected_files()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.package
def test_sdist_holds_what_the_wheel_is_made_of(built):
    [sdist] = (built / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {re.sub("^rsl_tbptt_tasks/", "tasks/", name) for name in expected_files()}
    assert sources | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not any(name.startswith(("tests", "configs", ".")) for name in names)


def run_installed(built, code):
    python = built / "venv" / "bin" / "python"
    # -I: the checkout and the user's packages are not on the path.
    return subprocess.run(
        [python, "-I", "-c", code], cwd=built, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@pytest.mark.package
def test_installed_package_shows_its_tasks_and_data(built):
    tasks, places, has_asset = run_installed(built, SMOKE)
    assert tasks == "rsl_tbptt=rsl_tbptt_tasks.isaaclab rsl_tbptt=rsl_tbptt_tasks.mjlab"
    assert all(str(built / "venv") in place for place in places.split())
    assert has_asset == "True"


@pytest.mark.package
def test_installed_package_trains(built):
    """The README's example, in an environment with nothing but what the package asks for."""
    example, _ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    result = run_installed(built, f"{example}\nprint(runner.alg.num_updates)")
    assert result[-1] == "10"
