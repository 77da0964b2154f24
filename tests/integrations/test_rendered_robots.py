"""Rendered robots in Isaac Lab and mjlab, on a CPU without OpenGL: a camera changes nothing."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

SIZE = (96, 72)
TASKS = {
    "Tbptt-Cartpole-Occluded": "isaaclab",
    "Tbptt-Cartpole-Camera": "isaaclab",  # has a camera of its own
    "Tbptt-Cartpole-Occluded-Teacher": "mjlab",
    "Tbptt-Cartpole-Camera-Student": "mjlab",
}
HEADLESS = {"CUDA_VISIBLE_DEVICES": "", "MUJOCO_GL": "disable", "OMP_NUM_THREADS": "1"}
MJLAB = f"""
import json, sys
sys.path[:0] = {sys.path!r}
from integrations.test_rendered_robots import roll_outs
json.dump(roll_outs("mjlab", sys.argv[1]), open("seen.json", "w"))
"""


@pytest.mark.long
@pytest.mark.isaaclab
@pytest.mark.parametrize("task", TASKS)
def test_a_camera_shows_robots_that_move_and_changes_nothing_else(request, tmp_path, task):
    platform = TASKS[task]
    if not importlib.util.find_spec(platform):
        pytest.skip(f"needs {platform}")
    if platform == "isaaclab":
        isaaclab = request.getfixturevalue("isaaclab")
        without, seen = isaaclab.call(f"{__file__}:roll_outs", platform, task)[0]
    else:
        command = [sys.executable, "-c", MJLAB, task]
        subprocess.run(command, cwd=tmp_path, env=os.environ | HEADLESS, check=True)
        without, seen = json.loads((tmp_path / "seen.json").read_text())
    assert without["rewards"] == seen["rewards"]
    assert without["obs"] == seen["obs"]
    assert len({reward for step in without["rewards"] for reward in step}) > 10

    images = np.array(seen["images"], dtype=int)
    assert images.shape == (2, 3, SIZE[1], SIZE[0], 3)
    for robot in images.reshape(6, SIZE[1], SIZE[0], 3):
        red_minus_blue = robot[..., 0] - robot[..., 2]  # a cart is red, or blue
        robot_here = (red_minus_blue if platform == "mjlab" else -red_minus_blue) > 60
        assert robot_here.sum() > 10
        rows, columns = robot_here.nonzero()
        assert 0.15 < rows.mean() / SIZE[1] < 0.85
        assert 0.15 < columns.mean() / SIZE[0] < 0.85
        assert 0 < rows.min() <= rows.max() < SIZE[1] - 1
        assert robot[0].min() > 100 or platform != "mjlab"  # sky; a scene without one is dark
    assert not np.array_equal(images[0], images[1])


def roll_outs(platform, task):
    """Act at random without and with images; return what each showed."""
    return [roll_out(platform, task, size) for size in (None, SIZE)]


def roll_out(platform, task, image_size):
    """Return rewards, the last observations, and the first and last images."""
    import torch

    from rsl_tbptt.tools.platforms import Simulation, load_platform

    loaded = load_platform(platform)
    simulation = Simulation(task=task, num_envs=3, seed=5, device="cpu", image_size=image_size)
    with loaded.simulated_env(simulation) as env:
        loaded.restart(env, 5)
        render = loaded.renderer(env) if image_size else lambda: torch.zeros(0)
        images = [render().tolist()]
        with torch.inference_mode():
            rewards = [env.step(torch.randn(3, env.num_actions))[1].tolist() for _ in range(12)]
        images.append(render().tolist())
        obs = {name: group.tolist() for name, group in env.get_observations().items()}
    return {"rewards": rewards, "obs": obs, "images": images}
