"""Observations, rewards, terminations and events that the tasks add to mjlab's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mjlab.envs import mdp as base_mdp

if TYPE_CHECKING:
    import torch
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.managers import SceneEntityCfg


def body_mass(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return the simulated masses of the selected bodies, as randomised in each environment.

    Args:
        env: The environment.
        asset_cfg: The entity and its bodies, B of them.

    Returns:
        Masses in kg. Shape: (N, B), float32.
    """
    bodies = env.scene[asset_cfg.name].indexing.body_ids[asset_cfg.body_ids]
    return env.sim.model.body_mass[:, bodies]


def sliding_friction(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return the simulated sliding friction of the selected geometries, as randomised.

    Args:
        env: The environment.
        asset_cfg: The entity and its geometries, G of them.

    Returns:
        Coefficients of friction. Shape: (N, G), float32.
    """
    geoms = env.scene[asset_cfg.name].indexing.geom_ids[asset_cfg.geom_ids]
    return env.sim.model.geom_friction[:, geoms, 0]


def joint_damping(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return the simulated viscous damping of the selected joints, as randomised.

    Args:
        env: The environment.
        asset_cfg: The entity and its joints, J of them, with one degree of freedom each.

    Returns:
        Damping in N s/m for a sliding joint, N m s/rad for a hinge. Shape: (N, J), float32.
    """
    joints = env.scene[asset_cfg.name].indexing.joint_v_adr[asset_cfg.joint_ids]
    return env.sim.model.dof_damping[:, joints]


def joint_pos_beyond(
    env: ManagerBasedRlEnv, limit: float, asset_cfg: SceneEntityCfg
) -> torch.Tensor:
    """Return whether any of the selected joints is farther from its zero than a limit.

    Args:
        env: The environment.
        limit: The limit, in m for a sliding joint, rad for a hinge.
        asset_cfg: The entity and its joints.

    Returns:
        Whether one is. Shape: (N,), bool.
    """
    joint_pos = env.scene[asset_cfg.name].data.joint_pos[:, asset_cfg.joint_ids]
    return (joint_pos.abs() > limit).any(dim=-1)


def joint_pos_l2(env: ManagerBasedRlEnv, asset_cfg: SceneEntityCfg) -> torch.Tensor:
    """Return the squared distance of the selected joints from their zero, summed.

    Args:
        env: The environment.
        asset_cfg: The entity and its joints.

    Returns:
        The sum in m^2 or rad^2. Shape: (N,), float32.
    """
    joint_pos = env.scene[asset_cfg.name].data.joint_pos[:, asset_cfg.joint_ids]
    return joint_pos.square().sum(dim=-1)


def height_image(env: ManagerBasedRlEnv, sensor_name: str) -> torch.Tensor:
    """Return mjlab's height scan as a picture, for a CNN.

    Args:
        env: The environment.
        sensor_name: A ray cast sensor with a grid around one frame.

    Returns:
        Height of the sensor above the ground, in m. Shape: (N, 1, rays along y, rays along x),
        float32.
    """
    heights = base_mdp.height_scan(env, sensor_name)
    sensor: Any = env.scene[sensor_name]
    grid = sensor.cfg.pattern
    along_y, along_x = (round(size / grid.resolution) + 1 for size in reversed(grid.size))
    return heights.unflatten(1, (1, along_y, along_x))


def action_l2(env: ManagerBasedRlEnv) -> torch.Tensor:
    """Return the sum of the policy's squared actions. Shape: (N,), float32."""
    return env.action_manager.action.square().sum(dim=-1)


def target_default_joint_pos(env: ManagerBasedRlEnv, env_ids: torch.Tensor) -> None:
    """Set the robot's target angles to its default angles, until the first action arrives.

    mjlab's reset sets them to zero, so late motors would straighten the legs first.

    Args:
        env: The environment, whose robot is named ``"robot"``.
        env_ids: Environments to set. Shape: (n,), int64.
    """
    robot = env.scene["robot"]
    robot.set_joint_position_target(robot.data.default_joint_pos[env_ids], env_ids=env_ids)
