"""Rendered robots in mjlab, on a CPU without OpenGL: a camera changes nothing else."""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")


WIDTH, HEIGHT = 96, 72
ROLL_OUT = f"""
import json, torch
from rsl_tbptt.tools.platforms import Simulation, load_platform

def roll_out(image_size):
    mjlab, sizes = load_platform("mjlab"), dict(num_envs=3, seed=5, image_size=image_size)
    with mjlab.simulated_env(Simulation(task="TASK", device="cpu", **sizes)) as env:
        mjlab.restart(env, 5)
        render = mjlab.renderer(env) if image_size else lambda: torch.zeros(0)
        images = [render().tolist()]
        with torch.inference_mode():
            rewards = [env.step(torch.randn(3, env.num_actions))[1].tolist() for _ in range(12)]
        images.append(render().tolist())
    return dict(rewards=rewards, images=images)

json.dump([roll_out(size) for size in (None, ({WIDTH}, {HEIGHT}))], open("rollouts.json", "w"))
"""


TASKS = ("Tbptt-Cartpole-Occluded-Teacher", "Tbptt-Cartpole-Camera-Student")
"""A task without a camera, and one with its own camera."""


@pytest.fixture(scope="module", params=TASKS)
def rollouts(tmp_path_factory, request):
    """Rewards and images of the same rollout without a camera and with one."""
    folder = tmp_path_factory.mktemp("rollouts")
    hidden = {"CUDA_VISIBLE_DEVICES": "", "MUJOCO_GL": "disable", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ROLL_OUT.replace("TASK", request.param)]
    result = subprocess.run(
        command, cwd=folder, env=os.environ | hidden, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return json.loads((folder / "rollouts.json").read_text())


def test_a_camera_changes_no_reward(rollouts):
    without, with_camera = (rollout["rewards"] for rollout in rollouts)
    assert without == with_camera
    assert len({reward for step in without for reward in step}) > 10


def test_carts_stand_in_the_middle_of_their_images_and_move(rollouts):
    images = np.array(rollouts[1]["images"], dtype=int)
    assert images.shape == (2, 3, HEIGHT, WIDTH, 3)
    for robot in images.reshape(6, HEIGHT, WIDTH, 3):
        red = robot[..., 0] - robot[..., 2] > 60
        assert red.sum() > 10
        rows, columns = red.nonzero()
        assert 0.3 < rows.mean() / HEIGHT < 0.7
        assert 0.2 < columns.mean() / WIDTH < 0.8
        assert robot[0].min() > 100  # sky; a scene without one is dark
    assert not np.array_equal(images[0], images[1])
