"""The published bundle acts in mjlab without its checkpoint."""

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
GO1 = ROOT / "examples" / "go1_flat_student"
RUN = "import sys; from rsl_tbptt.tools.commands.cli import main; sys.exit(main())"


def run(folder, *words):
    """Run a command of rsl-tbptt in a folder, without a GPU."""
    path = os.pathsep.join(filter(None, sys.path))
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", RUN, *words]
    subprocess.run(command, cwd=folder, env={**os.environ, **hidden}, check=True)


def test_the_published_student_of_go1_is_evaluated_without_its_checkpoint(tmp_path):
    words = ["--episodes", "2", "--max-steps", "3", "--output", "go1.json"]
    run(tmp_path, "evaluate", "--policy", str(GO1), *words)
    found = json.loads((tmp_path / "go1.json").read_text())
    assert (found["form"], found["checkpoint"], found["lengths"]) == ("onnx", "model_50.pt", [3, 3])
    assert found["task"] == "Tbptt-Velocity-Flat-Unitree-Go1-Student"
    assert 0 < found["mean_return"] < 1  # a step of a standing robot earns about 0.1


def test_the_published_student_of_go1_is_filmed(tmp_path):
    words = ["--seconds", "0.12", "--num-envs", "1", "--video", "go1.webp"]
    run(tmp_path, "play", "--policy", str(GO1), *words)
    with Image.open(tmp_path / "go1.webp") as film:
        assert film.n_frames == 2
