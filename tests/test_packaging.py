"""The installed package has the packages, their data and entry points, and nothing else."""

import json
import os
import re
import subprocess
import tarfile
import zipfile
from importlib.metadata import metadata, version
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


def files_in_checkout(pattern: str = "*") -> set[str]:
    """Return the files in the packages that match a pattern, under their installed names."""
    return {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob(pattern)
        if path.is_file() and path.parent.name != "__pycache__"
    }


def test_every_package_is_listed():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = pyproject["tool"]["setuptools"]["packages"]
    inits = files_in_checkout("__init__.py")
    assert sorted(listed) == sorted(init.rpartition("/")[0].replace("/", ".") for init in inits)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with sdist and wheel, and an environment with the wheel and its training extra."""
    return install_wheel(tmp_path_factory.mktemp("package"), "train")


def install_wheel(folder, extras):
    """Build the package and install the wheel with some extras into an empty environment."""
    command = [ROOT / "scripts" / "ci" / "bootstrap.sh", "package", folder]
    subprocess.run(command, env={**os.environ, "EXTRAS": extras}, check=True)
    return folder


def expected_files():
    found = files_in_checkout()
    assert {"rsl_tbptt/py.typed", "rsl_tbptt_tasks/isaaclab/assets/cartpole.usda"} < found
    return found


@pytest.mark.package
def test_wheel_holds_the_packages_and_nothing_else(built):
    [wheel] = (built / "dist").glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    assert {name for name in names if ".dist-info/" not in name} == expected_files()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.package
def test_sdist_has_the_files_of_the_wheel(built):
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
def test_installed_package_shows_its_tasks_and_data_and_trains(built):
    tasks, places, has_asset = run_installed(built, SMOKE)
    assert tasks == "rsl_tbptt=rsl_tbptt_tasks.isaaclab rsl_tbptt=rsl_tbptt_tasks.mjlab"
    assert all(str(built / "venv") in place for place in places.split())
    assert has_asset == "True"
    # The README's example, with only the package's dependencies.
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert run_installed(built, f"{example}\nprint(runner.alg.num_updates)")[-1] == "10"


def test_package_citation_readme_and_changelog_agree():
    release, summary = version("rsl-tbptt"), metadata("rsl-tbptt")["Summary"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {release}\n" in citation
    assert f'\ntitle: "rsl_tbptt: {summary[0].lower()}{summary[1:-1]}"\n' in citation
    assert "\nlicense: BSD-3-Clause\n" in citation
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert summary.partition(" for ")[0].lower() in readme
    assert "Licence: BSD-3-Clause. Cite: [CITATION.cff]" in readme
    assert re.search(rf"^## \[{release}\] - 20\d\d-", (ROOT / "CHANGELOG.md").read_text(), re.M)


DEMO = """
--rl_library rsl_rl --task Tbptt-Cartpole-Occluded --num_envs 8 --max_iterations 1
physics=newton_mjwarp --device cpu agent.device=cpu agent.num_steps_per_env=8
"""
STUDENT = "rsl_rl_distillation_recurrent_cfg_entry_point"


STEP = """
import sys
import numpy as np
from rsl_tbptt.deploy import Policy

policy = Policy(sys.argv[1])
golden = np.load(f"{sys.argv[1]}/golden.npz")
for step, starts in enumerate(golden["reset"]):
    if starts:
        policy.reset()
    actions = policy.step({"policy": golden["obs/policy"][step]})
    assert np.abs(actions - golden["actions"][step]).max() < 1e-4
print(len(golden["reset"]))
"""


@pytest.mark.package
@pytest.mark.isaaclab
def test_the_wheel_alone_trains_and_exports_the_demos_student_and_a_robot_needs_no_torch(tmp_path):
    """In new environments: with Isaac Lab, and on a robot."""
    built = install_wheel(tmp_path / "simulator", "isaaclab,tools")
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def run(program, *words):
        """Run a program of that environment, away from the checkout and the user's packages."""
        result = subprocess.run(
            [built / "venv" / "bin" / program, *words],
            cwd=tmp_path,
            env={**variables, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        return result.stdout

    def checkpoint(name):
        (found,) = tmp_path.glob(f"logs/rsl_rl/*/*_{name}/model_0.pt")
        return ("--checkpoint", str(found))

    run("isaaclab", "train", *DEMO.split(), "--run_name", "teacher")
    starts = ("--agent", STUDENT, *checkpoint("teacher"))
    run("isaaclab", "train", *DEMO.split(), *starts, "--run_name", "student")
    student, bundle = checkpoint("student"), tmp_path / "bundle"
    assert "mean return" in run("rsl-tbptt", "evaluate", *student, "--episodes", "4")
    assert "onnx: largest difference" in run("rsl-tbptt", "export", *student, "--output", bundle)
    exported = json.loads((bundle / "policy.json").read_text())
    assert exported["max_difference"].keys() == {"onnx"}
    built = install_wheel(tmp_path / "robot", "deploy")
    [site_packages] = (built / "venv" / "lib").glob("python*/site-packages")
    assert not (site_packages / "torch").exists()
    command = [built / "venv" / "bin" / "python", "-I", "-c", STEP, bundle]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout == "200\n"


@pytest.mark.package
def test_the_error_of_the_wheel_alone_names_the_extra_to_export(built):
    program = built / "venv" / "bin" / "rsl-tbptt"
    help_text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    assert "evaluate" in help_text.stdout
    command = [program, "export", "--checkpoint", "model_0.pt"]
    result = subprocess.run(command, cwd=built, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("rsl-tbptt export: The module onnxruntime is missing")
    assert "pip install 'PATH[tools]'" in result.stderr
