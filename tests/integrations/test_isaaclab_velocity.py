"""Rough ground in real physics: who sees the height scan. The robot is a stand-in."""

import pytest
import torch

pytestmark = pytest.mark.isaaclab

PROPRIOCEPTION = 3 + 3 + 3 + 12 + 12 + 12
"""Angular velocity, gravity, command; positions, velocities and last actions of 12 joints."""
PRIVILEGED = 3 + 1 + 17 * 11
"""Linear velocity, mass of the base, heights over 1.6 m by 1.0 m every 0.1 m."""

WORDS = """
train --rl_library rsl_rl --agent rsl_rl_recurrent_cfg_entry_point
physics=newton_mjwarp --device cpu agent.device=cpu
env.scene.terrain.terrain_generator.num_rows=1 env.scene.terrain.terrain_generator.num_cols=2
"""


def test_the_actor_is_blind_and_the_critic_sees_the_ground(page):
    words = [*WORDS.split(), "--task", "Tbptt-Velocity-Rough-Anymal-D"]
    checkpoint = torch.load(page.run(words).checkpoint, weights_only=True)
    actor, critic = checkpoint["actor_state_dict"], checkpoint["critic_state_dict"]
    assert actor["rnn.rnn.weight_ih_l0"].shape[1] == PROPRIOCEPTION
    assert critic["mlp.0.weight"].shape[1] == PROPRIOCEPTION + PRIVILEGED
    assert checkpoint["optimizer_state_dict"]["state"]


def test_in_the_scan_variant_the_actor_sees_the_ground_as_an_image(page):
    words = [*WORDS.split(), "--task", "Tbptt-Velocity-Rough-Anymal-D-Scan"]
    checkpoint = torch.load(page.run(words).checkpoint, weights_only=True)
    assert checkpoint["rsl_tbptt"]["models"]["actor"]["images"] == {"scan": [1, 11, 17]}
    actor = checkpoint["actor_state_dict"]
    features = actor["cnns.scan.2.weight"].shape[0] * 2 * 3
    assert actor["rnn.rnn.weight_ih_l0"].shape[1] == PROPRIOCEPTION + features
    moments = checkpoint["optimizer_state_dict"]["state"]
    assert all(moment["exp_avg"].abs().sum() > 0 for moment in moments.values())
