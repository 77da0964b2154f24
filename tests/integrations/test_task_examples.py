"""The packages that users copy, examples/task_*: installed, and trained as their README says."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.isaaclab_page import INSTALL
from support.pages import arguments, build_wheel, command_lines

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
NAME = "pole_balance"
"""Name that the package gets, as a user would rename it."""
SHORT = {
    "train": ("--env.scene.num-envs", "8", "--agent.max-iterations", "1"),
    "rsl-tbptt": ("--episodes", "3"),
}


def copied(example, folder):
    """Copy an example under another name; return the folder and the commands of its README."""
    package = folder / NAME
    shutil.copytree(ROOT / "examples" / f"task_{example}", package)
    (package / "my_task").rename(package / NAME)
    for path in (path for path in package.rglob("*") if path.is_file()):
        path.write_text(path.read_text().replace("my_task", NAME))
    commands = [line for line, _ in command_lines((package / "README.md").read_text())]
    return package, commands


def in_process(command, folder, package):
    path = os.pathsep.join([str(build_wheel(package)), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def assert_trained_in_turn(folder):
    """Check that each policy has memory where it should, and starts from the one before."""
    teacher, student, recurrent, tuned = (
        torch.load(max(folder.glob(pattern), key=os.path.getmtime), weights_only=True)
        for name in ("teacher", "student", "recurrent", "finetune")
        for pattern in [f"logs/rsl_rl/{NAME}/*_{name}/model_*.pt"]
    )
    loaded, trained = student["teacher_state_dict"], teacher["actor_state_dict"]
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)
    assert "rnn.rnn.weight_hh_l0" in recurrent["actor_state_dict"]
    assert not any(name.startswith("rnn") for name in recurrent["critic_state_dict"])
    given = student["student_state_dict"]  # the first updates train the critic alone
    assert all(torch.equal(tuned["actor_state_dict"][n], given[n]) for n in given if "std" not in n)
    assert len([*folder.glob(f"logs/rsl_rl/{NAME}/*_student/evaluation.json")]) == 1
    return given["rnn.rnn.weight_ih_l0"].shape[1]


@pytest.mark.isaaclab
def test_the_package_for_isaac_lab(request, tmp_path):
    pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")
    isaaclab = request.getfixturevalue("isaaclab")
    package, commands = copied("isaaclab", tmp_path)
    isaaclab.call(INSTALL, str(package), NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for line in (re.sub(r"model_\d+", "model_0", line) for line in commands):
            command, *words = arguments(line)
            if line.startswith("isaaclab"):
                assert command == "train"
                words += ["--max_iterations", "1", "--num_envs", "32"]
                isaaclab.call("isaaclab.cli:train", words, folder=tmp_path)
            else:
                isaaclab.tool(command, *words, *SHORT["rsl-tbptt"], folder=tmp_path)
    assert assert_trained_in_turn(tmp_path) == 2  # the student sees no velocities


def test_the_package_for_mjlab(tmp_path):
    if not importlib.util.find_spec("mjlab"):
        pytest.skip("mjlab has an environment of its own")
    package, commands = copied("mjlab", tmp_path)
    lines = (shlex.split(re.sub(r"model_\d+", "model_0", line)) for line in commands)
    shorter = [([*words, *SHORT[words[0]]], {}) for words in lines]
    (tmp_path / "commands.json").write_text(json.dumps(shorter))
    program = ROOT / "tests" / "support" / "mjlab_process.py"
    in_process([sys.executable, program, "commands.json"], tmp_path, package)
    assert assert_trained_in_turn(tmp_path) == 3  # the student sees no velocities


def test_the_package_for_rsl_rl_alone(tmp_path):
    """Its trainings are short enough to be run whole, so what they learn is looked at, too."""
    package, commands = copied("rsl_rl", tmp_path)
    program = Path(sys.executable).with_name("rsl-tbptt")
    names = {"python": sys.executable, "rsl-tbptt": program}
    script = "\n".join(re.sub(r"^\S+", lambda m: str(names[m[0]]), line) for line in commands)
    in_process(["bash", "-ec", script], tmp_path, package)
    files = {path.parent.name: path for path in tmp_path.glob("logs/*/evaluation.json")}
    returns = {name: json.loads(path.read_text())["mean_return"] for name, path in files.items()}
    assert returns.keys() == {"teacher", "student", "recurrent", "finetune"}
    assert returns["recurrent"] > 0.9 * returns["teacher"]
    assert returns["student"] > 0.93 * returns["teacher"], returns
    assert returns["finetune"] > returns["student"], returns
