"""Observation and reward terms that the tasks add to Isaac Lab's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import warp as wp
from isaaclab.envs import mdp as base_mdp
from isaaclab.managers import ManagerTermBase
from isaaclab.utils.math import quat_apply, quat_apply_inverse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isaaclab.envs import ManagerBasedEnv, ManagerBasedRLEnv
    from isaaclab.managers import ObservationTermCfg, SceneEntityCfg


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


def pull_ahead(
    env: ManagerBasedEnv,
    env_ids: Sequence[int] | slice,
    asset_cfg: SceneEntityCfg,
    force_range: tuple[float, float],
) -> None:
    """Pull a body along its x axis until the episode ends, as a slope, wind or leash would.

    Args:
        env: The environment.
        env_ids: Environments that draw a new force.
        asset_cfg: The articulation and its body.
        force_range: Smallest and largest force, in N; negative forces pull backwards.
    """
    asset = env.scene[asset_cfg.name]
    chosen = torch.arange(env.num_envs, device=env.device)[env_ids]
    forces = torch.zeros(len(chosen), 1, 3, device=env.device)
    forces[..., 0].uniform_(*force_range)
    asset.permanent_wrench_composer.set_forces_and_torques_index(
        forces=forces,
        torques=torch.zeros_like(forces),
        body_ids=asset_cfg.body_ids,
        env_ids=chosen,
    )


def pull(env: ManagerBasedEnv, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return the force that :func:`pull_ahead` applies.

    Args:
        env: The environment.
        asset_cfg: The articulation and its body.

    Returns:
        Force along the body's x axis, in N. Shape: (N, 1), float32.
    """
    forces = wp.to_torch(env.scene[asset_cfg.name].permanent_wrench_composer.local_force_b)
    return forces[:, asset_cfg.body_ids, 0].to(env.device)


class VelocityIncrement(ManagerTermBase):
    """The accelerometer's signal integrated over a control step, as inertial units report it.

    It is the change of the base's velocity minus gravity's share, in the base's frame. A push shows
    in it. The first value of an episode is gravity alone.
    """

    def __init__(self, cfg: ObservationTermCfg, env: ManagerBasedRLEnv) -> None:
        """Start with the robot's current velocity."""
        super().__init__(cfg, env)
        self._robot = env.scene["robot"].data
        self._gravity = torch.tensor(env.sim.cfg.gravity, device=env.device) * env.step_dt
        self._velocity = self._robot.root_lin_vel_w.torch.clone()
        self._change = torch.zeros_like(self._velocity)
        self._step = env.common_step_counter

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Start anew in some environments, or in all without ``env_ids``."""
        chosen = slice(None) if env_ids is None else env_ids
        self._velocity[chosen] = self._robot.root_lin_vel_w.torch[chosen]
        self._change[chosen] = 0.0

    def __call__(self, env: ManagerBasedRLEnv) -> torch.Tensor:
        """Return the increments of the last step; calling it again in a step changes nothing.

        Args:
            env: The environment.

        Returns:
            Increments in m/s. Shape: (N, 3), float32.
        """
        if env.common_step_counter != self._step:
            self._step = env.common_step_counter
            velocity = self._robot.root_lin_vel_w.torch
            # In place: ``reset`` cannot change tensors that a rollout makes in inference mode.
            self._change[:] = velocity - self._velocity
            self._velocity[:] = velocity
        return quat_apply_inverse(self._robot.root_quat_w.torch, self._change - self._gravity)


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


def clock(env: ManagerBasedRLEnv, frequency: float) -> torch.Tensor:
    """Return a clock that restarts with each episode: the phase of a cycle for a gait to follow.

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
    """Reward feet that leave flat ground in the clock's rhythm, with an exponential kernel.

    A foot swings in the first half of its cycle, along half a sine, and stands in the second.

    Args:
        env: The environment, on ground of height zero.
        asset_cfg: The articulation and the bodies that carry the feet, F of them, in order.
        foot: Centre of the foot in its body's frame, in m.
        radius: Radius of the foot, in m.
        phases: Phase of the clock's cycle at which each foot's own starts, in cycles. Length: F.
        frequency: The clock's cycles per second, in Hz.
        lift: Highest point of a swinging foot, in m.
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
