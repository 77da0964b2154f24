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
    names = [*trained["actor_state_dict"], *trained["critic_state_dict"]]
    moments = trained["optimizer_state_dict"]["state"]
    moved = [name for i, name in enumerate(names) if moments[i]["exp_avg"].abs().sum() > 0]
    assert {f"cnns.policy.{layer}.weight" for layer in (0, 2, 4)} <= set(moved)
    assert len(moments) == len(names)
