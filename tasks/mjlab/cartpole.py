"""Occluded cartpole: mjlab's own cartpole, made impossible to balance without memory.

The student sees only noisy positions. Balancing needs velocities: the pole has next to no damping,
so a policy that reacts to positions alone amplifies the swing. Two observations do not give a
velocity either, since their noise amounts to 0.6 rad/s; the student has to filter over many steps.
The teacher sees the exact state and the randomised physics.
"""

from __future__ import annotations

import math

from mjlab.envs import ManagerBasedRlEnvCfg
from mjlab.envs.mdp import dr, is_alive, joint_pos_rel, joint_vel_rel, reset_joints_by_offset
from mjlab.managers import (
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from mjlab.sim import MujocoCfg
from mjlab.tasks.cartpole.cartpole_env_cfg import cartpole_balance_env_cfg
from mjlab.utils.noise import GaussianNoiseCfg

from rsl_tbptt_tasks.mjlab import mdp

CART = SceneEntityCfg("cartpole", joint_names=("slider",), body_names=("cart",))
POLE = SceneEntityCfg("cartpole", joint_names=("hinge_1",), body_names=("pole_1",))

CART_SCALE = 0.6
"""Observation units per metre: the track's end, 1.7 m, becomes about 1."""
POLE_SCALE = 2.0
"""Observation units per radian: the angle at which an episode ends, 0.5 rad, becomes 1."""


def occluded_cartpole_env_cfg() -> ManagerBasedRlEnvCfg:
    """Return the environment: balance for 8 s at mjlab's 20 Hz, sized for two processor cores.

    Training and play use the same environment, since its noise is the task.
    """
    cfg = cartpole_balance_env_cfg()
    # On a CPU a step costs as much as its kernel launches, so: many environments, few substeps. Two
    # are needed: with one, a force acts on the position without delay, and a policy that reacts to
    # positions alone keeps the pole swinging without amplifying it. Nothing touches, and an episode
    # ends before the track does, so there are no constraints to solve.
    cfg.scene.num_envs = 512
    cfg.sim.mujoco = MujocoCfg(timestep=1 / 40, disableflags=("contact", "constraint"))
    cfg.decimation = 2
    cfg.episode_length_s = 8.0
    # Shows the whole rail from its side; mjlab's own view is along the rail.
    cfg.viewer.origin_type = cfg.viewer.OriginType.WORLD
    cfg.viewer.lookat, cfg.viewer.distance = (0.0, 0.0, 1.3), 4.8  # m
    cfg.viewer.azimuth, cfg.viewer.elevation = 100.0, -10.0  # degrees
    cfg.observations = {
        "actor": ObservationGroupCfg(_noisy_positions(), enable_corruption=True),
        "critic": ObservationGroupCfg(_exact_state()),
    }
    cfg.events = {**_physics_per_environment(), **_starts()}
    cfg.rewards = _rewards()
    cfg.terminations |= {
        "pole_fell": TerminationTermCfg(
            func=mdp.joint_pos_beyond, params={"limit": 0.5, "asset_cfg": POLE}
        ),
        "cart_left_track": TerminationTermCfg(
            func=mdp.joint_pos_beyond, params={"limit": 1.7, "asset_cfg": CART}
        ),
    }
    return cfg


def _noisy_positions() -> dict[str, ObservationTermCfg]:
    """Return the student's observations."""
    return {
        "cart_position": ObservationTermCfg(
            func=joint_pos_rel,
            params={"asset_cfg": CART},
            noise=GaussianNoiseCfg(std=0.02),  # m
            scale=CART_SCALE,
        ),
        "pole_angle": ObservationTermCfg(
            func=joint_pos_rel,
            params={"asset_cfg": POLE},
            noise=GaussianNoiseCfg(std=0.02),  # rad
            scale=POLE_SCALE,
        ),
    }


def _exact_state() -> dict[str, ObservationTermCfg]:
    """Return the teacher's observations: the exact state and the randomised physics."""
    return {
        "cart_position": ObservationTermCfg(
            func=joint_pos_rel, params={"asset_cfg": CART}, scale=CART_SCALE
        ),
        "pole_angle": ObservationTermCfg(
            func=joint_pos_rel, params={"asset_cfg": POLE}, scale=POLE_SCALE
        ),
        "cart_velocity": ObservationTermCfg(
            func=joint_vel_rel, params={"asset_cfg": CART}, scale=CART_SCALE
        ),
        "pole_velocity": ObservationTermCfg(
            func=joint_vel_rel, params={"asset_cfg": POLE}, scale=POLE_SCALE
        ),
        "cart_mass": ObservationTermCfg(func=mdp.body_mass, params={"asset_cfg": CART}),
        "pole_mass": ObservationTermCfg(func=mdp.body_mass, params={"asset_cfg": POLE}, scale=10.0),
        "cart_damping": ObservationTermCfg(func=mdp.joint_damping, params={"asset_cfg": CART}),
    }


def _physics_per_environment() -> dict[str, EventTermCfg]:
    """Return the physics that are randomised once per environment."""
    return {
        "cart_mass": _mass_event(CART, 0.7, 1.4),
        "pole_mass": _mass_event(POLE, 0.5, 2.0),
        "cart_damping": EventTermCfg(
            func=dr.joint_damping,
            mode="startup",
            params={"asset_cfg": CART, "ranges": (0.0, 0.2), "operation": "abs"},  # N s/m
        ),
    }


def _mass_event(asset_cfg: SceneEntityCfg, low: float, high: float) -> EventTermCfg:
    """Scale mass and inertia by a factor drawn log-uniformly from a range."""
    # mjlab scales by exp(2 alpha) and draws alpha uniformly.
    alphas = (math.log(low) / 2, math.log(high) / 2)
    return EventTermCfg(
        func=dr.pseudo_inertia,
        mode="startup",
        params={"asset_cfg": asset_cfg, "alpha_range": alphas},
    )


def _starts() -> dict[str, EventTermCfg]:
    """Return the starts that are randomised per episode."""
    return {
        "cart_start": EventTermCfg(
            func=reset_joints_by_offset,
            mode="reset",
            params={
                "asset_cfg": CART,
                "position_range": (-0.5, 0.5),
                "velocity_range": (-0.3, 0.3),
            },
        ),
        "pole_start": EventTermCfg(
            func=reset_joints_by_offset,
            mode="reset",
            params={
                "asset_cfg": POLE,
                "position_range": (-0.1, 0.1),
                "velocity_range": (-0.3, 0.3),
            },
        ),
    }


def _rewards() -> dict[str, RewardTermCfg]:
    """Return rewards per second: about 1 while the pole stands, so a return counts seconds."""
    return {
        "alive": RewardTermCfg(func=is_alive, weight=1.0),
        "pole_upright": RewardTermCfg(
            func=mdp.joint_pos_l2, weight=-1.0, params={"asset_cfg": POLE}
        ),
        "cart_centred": RewardTermCfg(
            func=mdp.joint_pos_l2, weight=-0.05, params={"asset_cfg": CART}
        ),
        # Keeps the teacher's gains small, so that a student which estimates velocities can
        # follow.
        "effort": RewardTermCfg(func=mdp.action_l2, weight=-0.05),
    }
