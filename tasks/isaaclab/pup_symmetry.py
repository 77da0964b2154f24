"""Pup's left-right symmetry: a policy that learns one side also learns the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

POLAR, AXIAL = (1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)
"""Signs of a mirrored vector and of a mirrored rotation."""

NOT_OF_JOINTS = {
    "base_lin_vel": POLAR,
    "base_ang_vel": AXIAL,
    "VelocityIncrement": POLAR,
    "projected_gravity": POLAR,
    "generated_commands": (1.0, -1.0, -1.0),  # velocities ahead, to the left and of turning
    "way_ahead": POLAR,  # cosine, sine and length
    "body_mass": (1.0,),
    "pull": (1.0,),  # along the body
    "clock": (-1.0, -1.0),  # the other diagonal swings
}
"""Signs of terms, by the name of their function; the other terms have one value per joint."""


def with_mirror_image(
    env: VecEnv, obs: TensorDict | None, actions: torch.Tensor | None
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Append the observations and actions of a mirrored robot, for ``symmetry_cfg``.

    Noise and delays are those of the original robot.

    Args:
        env: The environment.
        obs: Observations; pictures are flipped, all other groups are mirrored term by term, their
            history included. Shape: (B,).
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
        for group, values in obs.items():
            assert isinstance(values, torch.Tensor)
            if values.dim() > 2:
                mirrored[group] = values.flip(-1)
            else:
                mirrored[group] = _mirror_terms(unwrapped, str(group), values, pairs)
        obs = cast("TensorDict", torch.cat([obs, mirrored]))
    return obs, actions


def _mirror_terms(env: Any, group: str, values: torch.Tensor, pairs: list[int]) -> torch.Tensor:
    """Return a group's mirrored terms, (B, D), given the other side's joint of each joint."""
    manager, cfg = env.observation_manager, getattr(env.cfg.observations, group)
    terms = manager.active_terms[group]
    widths = [shape[-1] for shape in manager.group_obs_term_dim[group]]
    parts = []
    for term, part in zip(terms, values.split(widths, dim=1), strict=True):
        function = getattr(cfg, term).func
        signs = NOT_OF_JOINTS.get(getattr(function, "__name__", type(function).__name__))
        steps = part.unflatten(1, (-1, len(signs or pairs)))  # of the history
        steps = steps[..., pairs] if signs is None else steps * part.new_tensor(signs)
        parts.append(steps.flatten(1))
    return torch.cat(parts, dim=1)


def _other_side(joint: str) -> str:
    """Return the name of the joint on the robot's other side."""
    if "left" in joint:
        return joint.replace("left", "right")
    return joint.replace("right", "left")
