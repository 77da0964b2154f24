"""Pup's left-right symmetry: a teacher that learns one side also learns the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

POLAR, AXIAL = (1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)
"""Signs of a mirrored vector and of a mirrored rotation."""

NOT_OF_JOINTS = {
    "linear_velocity": POLAR,
    "angular_velocity": AXIAL,
    "gravity": POLAR,
    "command": POLAR,  # cosine, sine and length
    "trunk_mass": (1.0,),
    "clock": (-1.0, -1.0),  # the other diagonal swings
}
"""Signs of the teacher's terms; the other terms have one value per joint."""


def with_mirror_image(
    env: VecEnv, obs: TensorDict | None, actions: torch.Tensor | None
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Append the observations and actions of a mirrored robot, for ``symmetry_cfg`` of PPO.

    Args:
        env: The environment.
        obs: Observations; their group ``teacher`` is mirrored. Shape: (B,).
        actions: Actions. Shape: (B, A).

    Returns:
        Both with twice the rows; None stays None.
    """
    unwrapped: Any = env.unwrapped  # pyright: ignore[reportAttributeAccessIssue]
    names = unwrapped.scene["robot"].joint_names
    pairs = [names.index(_other_side(name)) for name in names]
    if actions is not None:
        actions = torch.cat([actions, actions[:, pairs]])
    if obs is not None:
        mirrored: Any = obs.clone()
        parts, start = [], 0
        for term in unwrapped.observation_manager.active_terms["teacher"]:
            signs = NOT_OF_JOINTS.get(term)
            part = mirrored["teacher"][:, start : start + len(signs or pairs)]
            parts.append(part[:, pairs] if signs is None else part * part.new_tensor(signs))
            start += len(signs or pairs)
        mirrored["teacher"] = torch.cat(parts, dim=1)
        obs = cast("TensorDict", torch.cat([obs, mirrored]))
    return obs, actions


def _other_side(joint: str) -> str:
    """Return the name of the joint on the robot's other side."""
    if "left" in joint:
        return joint.replace("left", "right")
    return joint.replace("right", "left")
