"""Isaac Lab's own camera task with our PPO: a CNN that sees only depth images, on a CPU."""

import pytest
import torch

pytestmark = [pytest.mark.isaaclab, pytest.mark.long]

TASK = "Isaac-Cartpole-Camera"
# Odd, so that a ray goes through the middle, because pole and cart are thinner than a pixel.
CAMERA = """
presets=depth renderer=newton_renderer
env.scene.tiled_camera.width=33 env.scene.tiled_camera.height=25
"""
WORDS = f"""
train --rl_library rsl_rl --task {TASK} --device cpu agent.device=cpu physics=newton_mjwarp {CAMERA}
agent.algorithm.class_name=rsl_tbptt.algorithms:TbpttPPO agent.num_steps_per_env=8
"""


MODEL = "agent.actor.class_name=rsl_tbptt.models:CNNRNNModel"


@pytest.fixture(scope="module", params=["", MODEL], ids=["as it is", "with a memory"])
def checkpoint(page, request):
    return page.run([*WORDS.split(), *request.param.split()]).checkpoint


def test_the_stock_camera_task_trains(checkpoint):
    trained = torch.load(checkpoint, weights_only=True)
    actor = trained["rsl_tbptt"]["models"]["actor"]
    assert actor["groups"]["policy"]["shape"] == [2, 25, 33]
    names = [*trained["actor_state_dict"], *trained["critic_state_dict"]]
    moments = trained["optimizer_state_dict"]["state"]
    moved = [name for i, name in enumerate(names) if moments[i]["exp_avg"].abs().sum() > 0]
    assert {f"cnns.policy.{layer}.weight" for layer in (0, 2, 4)} <= set(moved)
    assert len(moments) == len(names)
