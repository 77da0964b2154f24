"""Pup and its mirror image: what each of them sees and does, for the tests of its symmetry."""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt_tasks.isaaclab.pup_symmetry import with_mirror_image

LEGS = {"front_left": 0.1, "front_right": -0.2, "rear_left": 0.3, "rear_right": 0.05}
FRAME_PERIOD = 5
HISTORY = 3
"""Steps of the longest history."""


def without_sensor_faults(env_cfg: Any) -> None:
    """Remove noise and delays of the student's sensors."""
    policy = env_cfg.observations.policy
    policy.enable_corruption = False
    for name in ("angular_velocity", "velocity_increment", "joint_angles"):
        getattr(policy, name).delay_max_lag = 0


def look(env: Any, side: float, arrange: Callable[[float], None]) -> tuple[TensorDict, Any]:
    """Return observations and actions of a state, or with ``side`` -1 of its mirror image.

    ``arrange`` sets what else there is to see on that side.
    """
    num_envs, robot = env.num_envs, env.scene["robot"]
    env.reset()
    legs = dict(LEGS)
    if side < 0.0:
        legs = {leg: LEGS[leg.replace(*_sides(leg))] for leg in legs}
    of_joints = torch.tensor([legs[name.rsplit("_", 1)[0]] for name in robot.joint_names])
    pose = robot.data.root_link_pose_w.torch.clone()
    pose[:, :2] = env.scene.env_origins[:, :2] + torch.tensor([0.1, 0.2 * side])
    turned = torch.tensor([0.05 * side, 0.07, 0.15 * side, 1.0])
    pose[:, 3:] = torch.nn.functional.normalize(turned, dim=0)
    robot.write_root_link_pose_to_sim_index(root_pose=pose)
    arrange(side)
    robot.write_root_velocity_to_sim_index(root_velocity=torch.zeros(num_envs, 6))
    env.scene.update(0.0)
    env.common_step_counter += 1
    env.observation_manager.compute()  # velocity increments start from rest
    velocity = [0.3, 0.2 * side, 0.1, 0.4 * side, 0.5, 0.6 * side]
    robot.write_root_velocity_to_sim_index(root_velocity=torch.tensor([velocity] * num_envs))
    robot.write_joint_position_to_sim_index(position=robot.data.default_joint_pos.torch + of_joints)
    robot.write_joint_velocity_to_sim_index(velocity=10.0 * of_joints.expand(num_envs, 8))
    env.sim.forward()
    env.scene.update(0.02)
    actions = of_joints.expand(num_envs, 8)
    env.action_manager.process_action(actions)
    env.episode_length_buf[:] = 3 if side > 0.0 else 13  # half a cycle apart
    env.common_step_counter += FRAME_PERIOD - env.common_step_counter % FRAME_PERIOD
    for _ in range(HISTORY):
        obs = env.observation_manager.compute(update_history=True)
    return TensorDict(obs, [num_envs]), actions


def _sides(leg: str) -> tuple[str, str]:
    return ("left", "right") if "left" in leg else ("right", "left")


def compare(env: Any, arrange: Callable[[float], None]) -> dict[str, Any]:
    """Compare the mirror function with a robot that is placed as the mirror image.

    Args:
        env: The environment, unwrapped.
        arrange: See :func:`look`.

    Returns:
        By group what was expected and what was seen, the same of the actions, whether the function
        keeps the originals, and the largest change of mirroring twice.
    """
    obs, actions = look(env, 1.0, arrange)
    original = {name: values.clone() for name, values in obs.items()}
    both, both_actions = with_mirror_image(env, obs, actions)
    assert both is not None
    assert both_actions is not None
    num_envs = len(obs)
    twice, twice_actions = with_mirror_image(env, both[num_envs:], both_actions[num_envs:])
    assert twice is not None
    assert twice_actions is not None
    kept = all(bool((both[name][:num_envs] == original[name]).all()) for name in original)
    changes = [(twice[name][num_envs:] - original[name]).abs().max() for name in original]
    mirrored, mirrored_actions = look(env, -1.0, arrange)
    return {
        "expected": {name: both[name][num_envs:] for name in original},
        "seen": dict(mirrored.items()),
        "kept": kept,
        "twice": float(max([*changes, (twice_actions[num_envs:] - actions).abs().max()])),
        "actions": both_actions[num_envs:],
        "expected_actions": mirrored_actions,
    }
