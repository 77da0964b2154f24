"""Observation terms that the tasks add to Isaac Lab's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from isaaclab.envs import ManagerBasedEnv
    from isaaclab.managers import SceneEntityCfg


def body_mass(env: ManagerBasedEnv, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return the simulated masses of the selected bodies, as randomised in each environment.

    Args:
        env: The environment.
        asset_cfg: The articulation and its bodies, B of them.

    Returns:
        Masses in kg. Shape: (N, B), float32.
    """
    mass = env.scene[asset_cfg.name].data.body_mass.torch
    return mass[:, asset_cfg.body_ids].to(env.device)


def joint_damping(env: ManagerBasedEnv, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return the simulated viscous damping of the selected joints, as randomised.

    Args:
        env: The environment.
        asset_cfg: The articulation and its joints, J of them.

    Returns:
        Damping in N s/m for a sliding joint, N m s/rad for a hinge. Shape: (N, J), float32.
    """
    damping = env.scene[asset_cfg.name].data.joint_damping.torch
    return damping[:, asset_cfg.joint_ids].to(env.device)
