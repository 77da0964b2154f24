"""Velocity tracking of Unitree Go1 with a privileged teacher and a proprioceptive student.

Robot, terrain, rewards, events and curricula are mjlab's own. The student loses the base's linear
velocity and, on rough terrain, the height scan; it keeps the noise. The teacher sees the same as
mjlab's critic: everything, without noise, and the contacts of its feet. In the variant ``...-Scan``
the student also sees the scan, with noise and as a picture, which a CNN reads.
"""

from __future__ import annotations

from dataclasses import replace

from mjlab.envs import ManagerBasedRlEnvCfg
from mjlab.tasks.velocity.config.go1.env_cfgs import (
    unitree_go1_flat_env_cfg,
    unitree_go1_rough_env_cfg,
)

from rsl_tbptt_tasks.mjlab import mdp

HIDDEN = ("base_lin_vel", "height_scan")
"""Terms that only a simulator or a camera provides."""


def go1_env_cfg(terrain: str, *, play: bool = False, scan: bool = False) -> ManagerBasedRlEnvCfg:
    """Return mjlab's environment with a proprioceptive ``"actor"`` group.

    Args:
        terrain: ``"Flat"`` or ``"Rough"``.
        play: Whether for mjlab's ``play``: endless, without noise and pushes.
        scan: Whether there is a group ``"scan"`` with the picture of rough terrain.

    Returns:
        The environment's config.
    """
    make = {"Flat": unitree_go1_flat_env_cfg, "Rough": unitree_go1_rough_env_cfg}[terrain]
    cfg = make(play=play)
    actor = cfg.observations["actor"]
    if scan:
        heights = replace(actor.terms["height_scan"], func=mdp.height_image)
        cfg.observations["scan"] = replace(actor, terms={"heights": heights})
    for name in HIDDEN:
        actor.terms.pop(name, None)
    return cfg
