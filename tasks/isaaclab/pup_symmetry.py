"""What left and right of Pup are to each other: a teacher that learns one learns both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

POLAR, AXIAL = (1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)
"""Signs of a mirrored vector, and of a mirrored rotation."""

NOT_OF_JOINTS = {
    "linear_velocity": POLAR,
    "angular_velocity": AXIAL,
    "gravity": POLAR,
    "command": POLAR,  # cosine, sine and length
    "trunk_mass": (1.0,),
    "clock": (-1.0, -1.0),  # the other diagonal's turn
}
"""Signs of the teacher's terms; all others are one value per joint."""


def with_mirror_image(
    env: VecEnv, obs: TensorDict | None, actions: torch.Tensor | None
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Append what a mirrored robot would see and do, for ``symmetry_cfg`` of PPO.

    Args:
        env: The environment.
        obs: Observations, of which the group ``teacher`` is mirrored. Shape: (B,).
        actions: Shape: (B, A).

    Returns:
        Both with twice as many rows; None stays None.
    """
    scene, terms = env.unwrapped.scene, env.unwrapped.observation_manager.active_terms["teacher"]
    names = scene["robot"].joint_names
    other = {"left": "right", "right": "left"}
    pairs = ["_".join(other.get(word, word) for word in name.split("_")) for name in names]
    pairs = [names.index(name) for name in pairs]
    if actions is not None:
        actions = torch.cat([actions, actions[:, pairs]])
    if obs is not None:
        seen, parts, start = obs["teacher"], [], 0
        for term in terms:
            signs = NOT_OF_JOINTS.get(term)
            size = len(signs or pairs)
            part = seen[:, start : start + size]
            parts.append(part * part.new_tensor(signs) if signs else part[:, pairs])
            start += size
        obs = torch.cat([obs, obs])
        obs["teacher"] = torch.cat([seen, torch.cat(parts, dim=1)])
    return obs, actions
