"""A pillar to walk to and a wall to walk around: placement, the shortest way, and rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from isaaclab.envs import ManagerBasedEnv

PILLAR_RADIUS = 0.15
"""Radius in m."""

WALL_LENGTH, WALL_THICKNESS = 0.7, 0.06
"""Size in m. The wall runs along y."""

DETOUR = 0.4
"""Distance in m beyond the wall's end at which the way around it turns."""


class Way(NamedTuple):
    """The shortest way from a robot to its pillar, around the wall."""

    direction: torch.Tensor
    """Direction of the way at its start, as a unit vector in the world's x and y. Shape: (N, 2)."""
    length: torch.Tensor
    """Length in m. Shape: (N,)."""


def shortest_way(start: torch.Tensor, goal: torch.Tensor, wall: torch.Tensor) -> Way:
    """Return the shortest way around a wall along y.

    Args:
        start: Start of the way. Shape: (N, 2), in m.
        goal: End of the way. Shape: (N, 2), in m.
        wall: The wall's middle. Shape: (N, 2), in m.

    Returns:
        The way; it is straight if the wall is not in between.
    """
    half = WALL_LENGTH / 2 + DETOUR
    # Where the straight line crosses the wall's line.
    across = goal[:, 0] - start[:, 0]
    share = (wall[:, 0] - start[:, 0]) / torch.where(across.abs() < 1e-6, 1e-6, across)
    meets_at = start[:, 1] + share * (goal[:, 1] - start[:, 1])
    hidden = (share > 0.0) & (share < 1.0) & ((meets_at - wall[:, 1]).abs() < half)

    offsets = torch.tensor([[0.0, -half], [0.0, half]], device=start.device)
    corners = wall.unsqueeze(1) + offsets  # (N, 2, 2)
    to_corner = (corners - start.unsqueeze(1)).norm(dim=2)
    around = to_corner + (goal.unsqueeze(1) - corners).norm(dim=2)
    length, nearer = around.min(dim=1)
    corner = corners[torch.arange(len(start), device=start.device), nearer]

    towards = torch.where(hidden.unsqueeze(1), corner, goal) - start
    straight = (goal - start).norm(dim=1)
    return Way(
        direction=torch.nn.functional.normalize(towards, dim=1),
        length=torch.where(hidden, length, straight),
    )


def _positions(env: ManagerBasedEnv) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the positions of robot, pillar and wall. Shapes: (N, 2), in m."""
    robot, pillar, wall = (
        env.scene[name].data.root_link_pos_w.torch[:, :2] for name in ("robot", "pillar", "wall")
    )
    return robot, pillar, wall


def _way(env: ManagerBasedEnv) -> Way:
    return shortest_way(*_positions(env))


def _turn(env: ManagerBasedEnv, way: Way) -> torch.Tensor:
    """Return the angle from the robot's nose to the way's start, left positive. (N,), in rad."""
    nose = env.scene["robot"].data.heading_w.torch
    x, y = torch.cos(nose), torch.sin(nose)
    ahead, left = way.direction.unbind(dim=1)
    return torch.atan2(x * left - y * ahead, x * ahead + y * left)


def way_ahead(env: ManagerBasedEnv) -> torch.Tensor:
    """Return the direction and length of the way, for a teacher.

    Returns:
        Cosine and sine of the angle from the robot's nose to the way's start, and its length in m.
        Shape: (N, 3), float32.
    """
    way = _way(env)
    turn = _turn(env, way)
    return torch.stack([torch.cos(turn), torch.sin(turn), way.length], dim=1)


def walks_the_way(env: ManagerBasedEnv, speed: float) -> torch.Tensor:
    """Reward walking along the way, and punish walking back.

    Args:
        env: The environment.
        speed: Speed in m/s that is worth 1; more is not worth more.

    Returns:
        Speed along the way in units of ``speed``, -1 to 1. Shape: (N,), float32.
    """
    velocity = env.scene["robot"].data.root_lin_vel_w.torch[:, :2]
    return ((velocity * _way(env).direction).sum(dim=1) / speed).clamp(-1.0, 1.0)


def turns_to_the_way(env: ManagerBasedEnv, gain: float, most: float) -> torch.Tensor:
    """Reward turning towards the way's start at a rate that fits the remaining angle.

    Args:
        env: The environment.
        gain: Wanted rate per angle, in 1/s.
        most: Highest wanted rate, and the error from which on the reward is 0, in rad/s.

    Returns:
        Reward between 0 and 1. Shape: (N,), float32.
    """
    wanted = (gain * _turn(env, _way(env))).clamp(-most, most)
    rate = env.scene["robot"].data.root_ang_vel_b.torch[:, 2]
    return (1.0 - (rate - wanted).abs() / most).clamp(min=0.0)


def reached_pillar(env: ManagerBasedEnv, distance: float) -> torch.Tensor:
    """Return which robots are at the pillar.

    Args:
        env: The environment.
        distance: Distance of the trunk's frame from the pillar's axis, in m.

    Returns:
        Whether each has arrived. Shape: (N,), bool.
    """
    robot, pillar, _ = _positions(env)
    return (pillar - robot).norm(dim=1) < distance


def hit_wall(env: ManagerBasedEnv, distance: float) -> torch.Tensor:
    """Return which robots walked into the wall; it has no collision, so they do not feel it.

    Args:
        env: The environment.
        distance: Distance of the trunk's frame from the wall's faces, in m.

    Returns:
        Whether each hit it. Shape: (N,), bool.
    """
    robot, _, wall = _positions(env)
    size = torch.tensor([WALL_THICKNESS, WALL_LENGTH], device=robot.device)
    return ((robot - wall).abs() < size / 2 + distance).all(dim=1)


def place_pillar_and_wall(
    env: ManagerBasedEnv,
    env_ids: torch.Tensor | slice,
    pillar: tuple[tuple[float, float], tuple[float, float]],
    wall: tuple[float, float],
    offset: tuple[float, float],
) -> None:
    """Move pillar and wall to random places.

    Args:
        env: The environment.
        env_ids: Environments where an episode starts. Shape: (n,); or a slice.
        pillar: Ranges of its x and y, from the environment's origin. In m.
        wall: Range of the wall's x, in m.
        offset: Range of the distance, along y, from the wall's middle to the straight line from
            origin to pillar, on either side, so that the shorter way can be seen. In m.
    """
    origins = env.scene.env_origins[env_ids, :2]

    def draw(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(len(origins), device=env.device)

    x, y, wall_x = draw(*pillar[0]), draw(*pillar[1]), draw(*wall)
    side = torch.where(draw(-1.0, 1.0) > 0.0, 1.0, -1.0)
    wall_y = y * wall_x / x + side * draw(*offset)
    for name, place in (("pillar", (x, y)), ("wall", (wall_x, wall_y))):
        asset = env.scene[name]
        pose = asset.data.default_root_pose.torch[env_ids].clone()
        pose[:, :2] = origins + torch.stack(place, dim=1)
        asset.write_root_link_pose_to_sim_index(root_pose=pose, env_ids=env_ids)
