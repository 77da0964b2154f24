"""Observation and reward terms that the tasks add to Isaac Lab's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from isaaclab.envs import mdp as base_mdp
from isaaclab.utils.math import quat_apply

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


def height_image(env: ManagerBasedEnv, sensor_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return Isaac Lab's height scan as a picture, for a CNN.

    Args:
        env: The environment.
        sensor_cfg: A ray caster with a grid of x fastest, Isaac Lab's default.

    Returns:
        Height of the sensor over the ground, less 0.5 m. Shape: (N, 1, rays along y, rays along x),
        float32.
    """
    heights = base_mdp.height_scan(env, sensor_cfg)
    scanner: Any = env.scene.sensors[sensor_cfg.name].cfg
    grid = scanner.pattern_cfg
    along_y, along_x = (round(size / grid.resolution) + 1 for size in reversed(grid.size))
    return heights.unflatten(1, (1, along_y, along_x))


def clock(env: ManagerBasedRLEnv, frequency: float) -> torch.Tensor:
    """Return a clock that each episode starts anew: where a cycle is, for a gait to follow.

    Args:
        env: The environment.
        frequency: Cycles per second, in Hz.

    Returns:
        Sine and cosine of the phase. Shape: (N, 2), float32.
    """
    phase = 2.0 * math.pi * _cycles(env, frequency)
    return torch.cat([torch.sin(phase), torch.cos(phase)], dim=1)


def feet_follow_clock_exp(
    env: ManagerBasedRLEnv,
    asset_cfg: SceneEntityCfg,
    *,
    foot: tuple[float, float, float],
    radius: float,
    phases: tuple[float, ...],
    frequency: float,
    lift: float,
    std: float,
) -> torch.Tensor:
    """Reward feet that leave flat ground in the clock's rhythm, by an exponential kernel.

    A foot swings in the first half of its cycle, along half a sine, and stands in the second.

    Args:
        env: The environment, on ground of height zero.
        asset_cfg: The articulation and the bodies that carry the feet, F of them, in order.
        foot: Centre of the foot in its body's frame, in m.
        radius: Radius of the foot, in m.
        phases: Where in the clock's cycle each foot starts its own, in cycles. Length: F.
        frequency: The clock's cycles per second, in Hz.
        lift: Height of a swinging foot at its highest, in m.
        std: Root of the summed squared height errors at which the reward is 1/e, in m.

    Returns:
        Reward between 0 and 1. Shape: (N,), float32.
    """
    data = env.scene[asset_cfg.name].data
    position = data.body_link_pos_w.torch[:, asset_cfg.body_ids]
    rotation = data.body_link_quat_w.torch[:, asset_cfg.body_ids]
    offset = torch.tensor(foot, device=position.device).expand_as(position)
    height = (position + quat_apply(rotation, offset))[..., 2] - radius
    cycles = _cycles(env, frequency) + torch.tensor(phases, device=position.device)
    wanted = lift * torch.sin(2.0 * math.pi * cycles).clamp(min=0.0)
    return torch.exp(-((height - wanted) / std).square().sum(dim=1))


def _cycles(env: ManagerBasedRLEnv, frequency: float) -> torch.Tensor:
    """Return the clock's cycles since the episode's start. Shape: (N, 1)."""
    return frequency * env.step_dt * env.episode_length_buf.unsqueeze(1)
