"""Rendered robots in Isaac Lab, on a CPU: the added camera changes nothing else."""

import numpy as np
import pytest

pytestmark = pytest.mark.isaaclab

IMAGE_SIZE = (96, 72)
TASKS = {
    "Tbptt-Cartpole-Occluded": "fixed to the world",
    "Tbptt-Velocity-Flat-Pup": "walks",
    "Tbptt-Cartpole-Camera": "has a camera of its own",
}


@pytest.fixture(scope="module", params=TASKS, ids=[*TASKS.values()])
def rollouts(isaaclab, request):
    """Rewards, observations and images of the same rollout without a camera and with one."""
    return [
        isaaclab.call(f"{__file__}:roll_out", request.param, size)[0] for size in (None, IMAGE_SIZE)
    ]


def test_a_camera_changes_no_reward_and_no_observation(rollouts):
    without, with_camera = rollouts
    assert without["rewards"] == with_camera["rewards"]
    assert without["obs"] == with_camera["obs"]
    assert len({reward for step in without["rewards"] for reward in step}) > 10


def test_robots_stand_in_the_middle_of_their_images_and_move(rollouts):
    images = np.array(rollouts[1]["images"], dtype=int)
    assert images.shape == (2, 3, IMAGE_SIZE[1], IMAGE_SIZE[0], 3)
    for frame in images:
        for robot in frame:
            blue = robot[..., 2] - robot[..., 0] > 60  # a cart, a trunk
            assert blue.sum() > 10
            rows, columns = blue.nonzero()
            assert 0.15 < rows.mean() / IMAGE_SIZE[1] < 0.85
            assert 0.15 < columns.mean() / IMAGE_SIZE[0] < 0.85
            assert 0 < rows.min() <= rows.max() < IMAGE_SIZE[1] - 1
    assert not np.array_equal(images[0], images[1])


def roll_out(task, image_size):
    """Act at random; return rewards, the last observations, and the first and last images."""
    import torch

    from rsl_tbptt.tools.platforms import Simulation, load_platform

    isaaclab = load_platform("isaaclab")
    simulation = Simulation(task=task, num_envs=3, seed=5, device="cpu", image_size=image_size)
    with isaaclab.simulated_env(simulation) as env:
        isaaclab.restart(env, 5)
        render = isaaclab.renderer(env) if image_size else lambda: torch.zeros(0)
        images = [render().tolist()]
        with torch.inference_mode():
            rewards = [env.step(torch.randn(3, env.num_actions))[1].tolist() for _ in range(12)]
        images.append(render().tolist())
        obs = {name: group.tolist() for name, group in env.get_observations().items()}
    return {"rewards": rewards, "obs": obs, "images": images}
