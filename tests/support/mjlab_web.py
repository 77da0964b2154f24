"""Writes a page with a robot of mjlab, and states of its simulation with what mjlab computes there.

Its arguments are a bundle and the page's folder.
"""

import json
import sys
from pathlib import Path

import torch

from rsl_tbptt.tools.robot.bundle import LoneBundle
from rsl_tbptt.tools.robot.golden import recorded_terms
from rsl_tbptt.tools.robot.web import write_page
from rsl_tbptt.tools.simulate.evaluate import started

bundle, folder = map(Path, sys.argv[1:])
policy, states = LoneBundle(bundle), []
write_page({"Student": policy}, folder)
with started(policy, num_envs=1, seed=3) as start, torch.inference_mode():
    env, obs, inner = start.env, start.obs, start.env.unwrapped
    inner.scene["robot"].data.encoder_bias[:] = 0.0  # which joint_pos adds
    with recorded_terms(inner) as terms:
        for _ in range(50):
            obs, _, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            found = {"qpos": inner.sim.data.qpos[0], "qvel": inner.sim.data.qvel[0]}
            found["seen"] = torch.cat(
                [
                    terms[f"actor/{name}"][0]
                    for name in inner.observation_manager.active_terms["actor"]
                ]
            )
            found["action"] = inner.action_manager.action[0]
            found["command"] = inner.command_manager.get_command("twist")[0]
            states.append({name: value.tolist() for name, value in found.items()})
(folder / "states.json").write_text(json.dumps(states))
