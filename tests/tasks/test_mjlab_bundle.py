"""The published bundle acts in mjlab without its checkpoint, by the commands of README.md."""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

from PIL import Image

ROOT = Path(__file__).parents[2]
COMMANDS = {
    line.split()[1]: line.split()[1:]
    for line in (ROOT / "README.md").read_text().splitlines()
    if "--policy examples/go1_flat_student" in line
}
"""README's commands by their names."""
RUN = "import sys; from rsl_tbptt.tools.commands.cli import main; sys.exit(main())"


def run(folder, *words):
    """Run a command of README.md with more options in a folder, without a GPU."""
    (folder / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join(filter(None, sys.path))
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", RUN, *COMMANDS[words[0]], *words[1:]]
    subprocess.run(command, cwd=folder, env={**os.environ, **hidden}, check=True)


def test_the_published_student_of_go1_is_evaluated_without_its_checkpoint(tmp_path):
    words = ["--episodes", "2", "--max-steps", "3", "--output", "go1.json"]
    run(tmp_path, "evaluate", *words)
    found = json.loads((tmp_path / "go1.json").read_text())
    assert (found["form"], found["checkpoint"], found["lengths"]) == ("onnx", "model_50.pt", [3, 3])
    assert found["task"] == "Tbptt-Velocity-Flat-Unitree-Go1-Student"
    assert 0 < found["mean_return"] < 1  # a step of a standing robot earns about 0.1


def test_the_published_student_of_go1_is_filmed(tmp_path):
    run(tmp_path, "play", "--seconds", "0.12", "--num-envs", "1")
    with Image.open(tmp_path / "go1.webp") as film:
        assert film.n_frames == 2
