"""Velocity tracking of Unitree Go1 with a privileged teacher and a proprioceptive student.

Robot, terrain, rewards, events and curricula are mjlab's own. The student loses the base's linear
velocity and, on rough terrain, the height scan; it keeps the noise. The teacher sees the same as
mjlab's critic: everything, without noise, and the contacts of its feet.

Variants:

- ``Scan``: the student also sees the scan, with noise and as a picture, which a CNN reads.
- ``Randomized``: what a real robot adds. The ranges are typical of such trainings and were not
  measured on a Go1; each value stays for an episode.

  - Each of the four measured signals (angular velocity, gravity, joint angles and velocities) is
    0 to 2 control steps late (40 ms). Last action and command are the controller's own.
  - Motors get the target angles 0 to 4 physics steps late (20 ms).
  - The trunk carries -1 to 3 kg, spread like its own mass; its centre of mass moves as in mjlab.
  - The feet's friction has mjlab's range, 0.3 to 1.5 for sliding.

  The teacher sees the mass of the trunk and the sliding friction, and nothing late.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mjlab.envs import ManagerBasedRlEnvCfg
from mjlab.envs.mdp import dr
from mjlab.managers import EventTermCfg, ObservationTermCfg, SceneEntityCfg
from mjlab.tasks.velocity.config.go1.env_cfgs import (
    unitree_go1_flat_env_cfg,
    unitree_go1_rough_env_cfg,
)

from rsl_tbptt_tasks.mjlab import mdp

HIDDEN = ("base_lin_vel", "height_scan")
"""Terms that only a simulator or a camera provides."""
TRUNK = SceneEntityCfg("robot", body_names=("trunk",))
FOOT = SceneEntityCfg("robot", geom_names=("FR_foot_collision",))
"""One of the four feet, which mjlab gives the same friction."""
TRUNK_MASS = 5.204
"""In kg, without payload."""
PAYLOAD = (-1.0, 3.0)
"""Range in kg."""
OBSERVATION_LAG, ACTION_LAG = 2, 4
"""Longest lags, in control steps of 20 ms and physics steps of 5 ms.

An action lasts 4 physics steps. mjlab hands targets on once more when any environment resets, which
would cut longer lags of actions short.
"""
PER_EPISODE = {"delay_update_period": 10**9, "delay_per_env_phase": False}
"""Draw a lag at an episode's first step, and again after more steps than an episode has."""


def go1_env_cfg(terrain: str, variant: str = "", *, play: bool = False) -> ManagerBasedRlEnvCfg:
    """Return mjlab's environment with a proprioceptive ``"actor"`` group.

    Args:
        terrain: ``"Flat"`` or ``"Rough"``.
        variant: ``"Scan"`` adds a group ``"scan"`` with the picture of rough terrain,
            ``"Randomized"`` adds latency, payload and friction.
        play: Whether for mjlab's ``play``: endless, without noise and pushes.

    Returns:
        The environment's config.
    """
    make = {"Flat": unitree_go1_flat_env_cfg, "Rough": unitree_go1_rough_env_cfg}[terrain]
    cfg = make(play=play)
    actor = cfg.observations["actor"]
    if variant == "Scan":
        heights = replace(actor.terms["height_scan"], func=mdp.height_image)
        cfg.observations["scan"] = replace(actor, terms={"heights": heights})
    for name in HIDDEN:
        actor.terms.pop(name, None)
    if variant == "Randomized":
        _add_latency(cfg)
        _randomize_episodes(cfg)
    return cfg


def _add_latency(cfg: ManagerBasedRlEnvCfg) -> None:
    """Delay what the actor measures and what its motors get."""
    actor = cfg.observations["actor"]
    for name, term in actor.terms.items():
        if term.noise is not None:  # a sensor's signal
            # A copy: mjlab's critic has the same object.
            actor.terms[name] = replace(term, delay_max_lag=OBSERVATION_LAG, **PER_EPISODE)
    robot = cfg.scene.entities["robot"]
    motors = robot.articulation.actuators
    late = (replace(motor, delay_max_lag=ACTION_LAG, **PER_EPISODE) for motor in motors)
    robot.articulation = replace(robot.articulation, actuators=tuple(late))
    cfg.events["first_targets"] = EventTermCfg(func=mdp.target_default_joint_pos, mode="reset")


def _randomize_episodes(cfg: ManagerBasedRlEnvCfg) -> None:
    """Draw friction and payload at each reset, and show them to the critic."""
    for name, event in cfg.events.items():
        if name.startswith("foot_friction"):
            event.mode = "reset"
    # One event sets mass, inertia and centre, since it starts from those of the robot's file.
    centre = cfg.events.pop("base_com").params["ranges"]
    low, high = (math.log(1.0 + payload / TRUNK_MASS) / 2.0 for payload in PAYLOAD)
    cfg.events["payload"] = EventTermCfg(
        func=dr.pseudo_inertia,
        mode="reset",
        params={
            "asset_cfg": TRUNK,
            "alpha_range": (low, high),  # mjlab scales the mass by exp(2 alpha)
            "t1_range": centre[0],
            "t2_range": centre[1],
            "t3_range": centre[2],
        },
    )
    cfg.observations["critic"].terms |= {
        "trunk_mass": ObservationTermCfg(func=mdp.body_mass, params={"asset_cfg": TRUNK}),
        "foot_friction": ObservationTermCfg(func=mdp.sliding_friction, params={"asset_cfg": FOOT}),
    }
