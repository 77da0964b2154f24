"""Observation terms that the tasks add to Isaac Lab's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from isaaclab.envs import ManagerBasedEnv, ManagerBasedRLEnv
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


def joint_stiffness(env: ManagerBasedEnv, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return the simulated stiffness of the selected joints' position control, as randomised.

    Args:
        env: The environment.
        asset_cfg: The articulation and its joints, J of them.

    Returns:
        Stiffness in N/m for a sliding joint, N m/rad for a hinge. Shape: (N, J), float32.
    """
    stiffness = env.scene[asset_cfg.name].data.joint_stiffness.torch
    return stiffness[:, asset_cfg.joint_ids].to(env.device)


def clock(env: ManagerBasedRLEnv, frequency: float) -> torch.Tensor:
    """Return a clock that each episode starts anew: where a cycle is, for a gait to follow.

    Args:
        env: The environment.
        frequency: Cycles per second, in Hz.

    Returns:
        Sine and cosine of the phase. Shape: (N, 2), float32.
    """
    seconds = env.episode_length_buf.unsqueeze(1) * env.step_dt
    phase = 2.0 * math.pi * frequency * seconds
    return torch.cat([torch.sin(phase), torch.cos(phase)], dim=1)
