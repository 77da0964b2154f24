"""Observation terms that the tasks add to Isaac Lab's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from isaaclab.envs import mdp as base_mdp

if TYPE_CHECKING:
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


def height_image(env: ManagerBasedEnv, sensor_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return Isaac Lab's height scan as a picture, for a CNN.

    Args:
        env: The environment.
        sensor_cfg: A ray caster with a grid of x fastest, Isaac Lab's default.

    Returns:
        Height of the sensor over the ground minus 0.5 m. Shape: (N, 1, rays along y, rays along x),
        float32.
    """
    heights = base_mdp.height_scan(env, sensor_cfg)
    scanner: Any = env.scene.sensors[sensor_cfg.name].cfg
    grid = scanner.pattern_cfg
    along_y, along_x = (round(size / grid.resolution) + 1 for size in reversed(grid.size))
    return heights.unflatten(1, (1, along_y, along_x))
