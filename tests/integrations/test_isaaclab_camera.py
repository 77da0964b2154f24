"""Isaac Lab's own camera task with our PPO: a CNN that sees depth images alone, on a processor."""

import pytest
import torch

pytestmark = pytest.mark.isaaclab

WORDS = """
train --rl_library rsl_rl --task Isaac-Cartpole-Camera --device cpu agent.device=cpu presets=depth
physics=newton_mjwarp renderer=newton_renderer
agent.algorithm.class_name=rsl_tbptt.algorithms:TbpttPPO
env.scene.tiled_camera.width=32 env.scene.tiled_camera.height=24 agent.num_steps_per_env=8
"""


@pytest.fixture(scope="module")
def checkpoint(page):
    return page.run(WORDS.split()).checkpoint


def test_the_stock_camera_task_trains(checkpoint):
    trained = torch.load(checkpoint, weights_only=True)
    assert trained["rsl_tbptt"]["images"] == {"policy": [2, 24, 32]}
    optimizer = trained["optimizer_state_dict"]
    num_parameters = sum(len(trained[f"{model}_state_dict"]) for model in ("actor", "critic"))
    assert "cnns.policy.0.weight" in trained["actor_state_dict"]
    assert len(optimizer["state"]) == num_parameters
    assert all(state["exp_avg"].abs().sum() > 0 for state in optimizer["state"].values())
