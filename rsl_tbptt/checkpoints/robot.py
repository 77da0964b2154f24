"""Properties of an environment that running a policy on a robot needs, as plain values.

In Isaac Lab and mjlab the managers, which are similar, provide them. Of other environments the
observation groups are known. An environment can add more: its method ``describe_robot()`` returns
entries that replace those found here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.checkpoints.describing import plain, qualified_name

HOOK = "describe_robot"
"""Method of an environment, without arguments; the dictionary it returns takes precedence."""


def describe_robot(env: Any, obs: TensorDict) -> dict[str, Any]:
    """Describe the inputs and outputs of an environment's policies.

    Values that cannot be read are left out with a warning, so that the training does not end.

    Args:
        env: The environment, wrapped for rsl_rl.
        obs: Its observations, of any batch size.

    Returns:
        ``"observation_groups"`` by name: shape and, with managers, terms in order, each with name,
        function, parameters, shape, modifiers, scale, clip, whether it is noisy in training, its
        delays there in control steps, and history, whose steps the shape includes; and
        ``"history_order"``, whether steps are joined by ``"term"`` or by ``"time"``. A parameter
        that names a robot has its name as ``"entity"``, and the joints that it selects, in order,
        as ``"joint_names"``. ``"step_dt"`` in seconds; ``"clip_actions"``. With managers
        ``"actions"``, terms in order: name, kind, entity, width, joint names, and scale, offset and
        clip by action; ``"joint_names"`` with ``"default_joint_pos"``,
        ``"joint_stiffness"`` and ``"joint_damping"`` in that order, in the simulator's units;
        ``"joint_sdk_names"``, the joints in the order of the robot's motors, if its config has
        them as unitree_rl_lab's do; ``"command_names"``, and ``"command_ranges"`` of commands that
        have ranges.
    """
    inner = getattr(env, "unwrapped", env)
    readers: dict[str, Callable[[], Any]] = {
        "observation_groups": lambda: _observation_groups(inner, obs),
        "step_dt": lambda: getattr(inner, "step_dt", None),
        "clip_actions": lambda: getattr(env, "clip_actions", None),
        "actions": lambda: [_action(*term) for term in _action_terms(inner)],
        "joints": lambda: _joints(inner),
        "command_names": lambda: _active_terms(inner, "command_manager"),
        "command_ranges": lambda: _command_ranges(inner),
        HOOK: getattr(inner, HOOK, dict),
    }
    properties = {name: _read(name, read, inner) for name, read in readers.items()}
    properties |= {**(properties.pop("joints") or {}), **(properties.pop(HOOK) or {})}
    return {name: value for name, value in properties.items() if value not in (None, [], {})}


def _read(name: str, read: Callable[[], Any], env: Any) -> Any:
    """Return plain values; warn and return None if the environment's classes raise anything."""
    try:
        return plain(read())
    except Exception as error:
        warnings.warn(
            f"{name} of {type(env).__name__} could not be read for the checkpoint"
            f" ({type(error).__name__}: {error}), so exports will lack it: return it from a method"
            f" {HOOK}() of the environment.",
            stacklevel=4,
        )
        return None


def _observation_groups(env: Any, obs: TensorDict) -> dict[str, Any]:
    groups: dict[str, Any] = {
        name: {"shape": [*value.shape[obs.batch_dims :]]} for name, value in obs.items()
    }
    manager: Any = getattr(env, "observation_manager", None)
    if manager is None:
        return groups
    for name in groups.keys() & manager.active_terms:
        terms, shapes = observation_terms(manager, name), manager.group_obs_term_dim[name]
        groups[name]["terms"] = [
            {**_observation(*term), "parameters": _parameters(env, term[-1])}
            for term in zip(terms, shapes, terms.values(), strict=True)
        ]
        # Only Isaac Lab 3.0 can join the terms of each step before those of the next step.
        by_time = getattr(manager, "_group_obs_time_major", {}).get(name, False)
        groups[name]["history_order"] = "time" if by_time else "term"
    return groups


def observation_terms(manager: Any, group: str) -> dict[str, Any]:
    """Return the configs of a group's terms by name, in order."""
    names = manager.active_terms[group]
    if hasattr(manager, "get_term_cfg"):  # mjlab
        return {name: manager.get_term_cfg(group, name) for name in names}
    return dict(zip(names, manager._group_obs_term_cfgs[group], strict=True))


def _observation(name: str, shape: Sequence[int], cfg: Any) -> dict[str, Any]:
    return {
        "name": name,
        "function": getattr(cfg.func, "__name__", type(cfg.func).__name__),
        "shape": [*shape],
        "modifiers": [*map(_modifier, getattr(cfg, "modifiers", None) or ())],  # mjlab has none
        "scale": _numbers(cfg.scale),
        "clip": _numbers(cfg.clip),
        "noisy": cfg.noise is not None,
        "delay_min_lag": getattr(cfg, "delay_min_lag", 0),  # Isaac Lab 2.3 has none
        "delay_max_lag": getattr(cfg, "delay_max_lag", 0),
        "history_length": cfg.history_length,
        "flatten_history_dim": cfg.flatten_history_dim,
    }


def _parameters(env: Any, cfg: Any) -> dict[str, Any]:
    """Describe the arguments of a term's function, with the joints that they select, in order."""

    def told(value: Any) -> Any:
        joint_ids = getattr(value, "joint_ids", None)
        if joint_ids is None:
            return qualified_name(value if hasattr(value, "__qualname__") else type(value))
        if isinstance(joint_ids, slice) and joint_ids == slice(None):
            return {"entity": value.name}
        names = [*env.scene[value.name].joint_names]
        if isinstance(joint_ids, slice):
            return {"entity": value.name, "joint_names": names[joint_ids]}
        selected = torch.as_tensor(joint_ids).flatten().tolist()
        return {"entity": value.name, "joint_names": [names[joint] for joint in selected]}

    return plain(getattr(cfg, "params", {}), told)


def _modifier(cfg: Any) -> dict[str, Any]:
    """Describe what Isaac Lab applies before noise: a function, or an object with state."""

    def told(value: Any) -> Any:
        return _numbers(value) if isinstance(value, torch.Tensor) else qualified_name(value)

    func = cfg.func if hasattr(cfg.func, "__qualname__") else type(cfg.func)
    settings = {name: value for name, value in vars(cfg).items() if name != "func"}
    return {"name": qualified_name(func), **plain(settings, told)}


def _active_terms(env: Any, manager: str) -> list[str]:
    return [*getattr(getattr(env, manager, None), "active_terms", ())]


def _command_ranges(env: Any) -> dict[str, dict[str, list[float]]]:
    """Return the ranges of commands; if a config has a curriculum's final ones, those."""
    limits_of = {}
    for name in _active_terms(env, "command_manager"):
        cfg = getattr(env.command_manager.get_term(name), "cfg", None)
        ranges = getattr(cfg, "limit_ranges", getattr(cfg, "ranges", None))
        limits = getattr(ranges, "__dict__", {}).items()
        limits_of[name] = {key: [*pair] for key, pair in limits if isinstance(pair, (list, tuple))}
    return {name: ranges for name, ranges in limits_of.items() if ranges}


def _action_terms(env: Any) -> list[tuple[str, Any]]:
    names = _active_terms(env, "action_manager")
    return [(name, env.action_manager.get_term(name)) for name in names]


def _action(name: str, term: Any) -> dict[str, Any]:
    joints = getattr(term, "_joint_names", None) or getattr(term, "_target_names", ())
    clip = term._clip if getattr(term.cfg, "clip", None) is not None else None
    return {
        "name": name,
        "kind": type(term).__name__,
        "entity": getattr(term.cfg, "asset_name", getattr(term.cfg, "entity_name", None)),
        "width": term.action_dim,
        "joint_names": [*joints],
        "scale": _of_first_env(getattr(term, "_scale", None)),
        "offset": _of_first_env(getattr(term, "_offset", None)),
        "clip": _of_first_env(clip),
    }


def _joints(env: Any) -> dict[str, Any]:
    """Describe the joints of the robot that the first action moves."""
    terms = [term for _, term in _action_terms(env)]
    moved = [getattr(term, name, None) for term in terms for name in ("_asset", "_entity")]
    robot: Any = next((part for part in moved if hasattr(part, "joint_names")), None)
    if robot is None:
        return {}
    gains = _gains_in_mujoco(env, robot) if hasattr(robot, "spec") else _gains_of_actuators(robot)
    stiffness, damping = ([*map(float, gain.values())] for gain in gains)
    sdk_names = getattr(getattr(robot, "cfg", None), "joint_sdk_names", None)
    return {
        "joint_names": [*robot.joint_names],
        "default_joint_pos": _of_first_env(robot.data.default_joint_pos),
        "joint_stiffness": stiffness,
        "joint_damping": damping,
        **({"joint_sdk_names": [*sdk_names]} if sdk_names else {}),
    }


Gains = tuple[dict[str, float], dict[str, float]]
"""Stiffness and damping by joint name."""


def _gains_of_actuators(robot: Any) -> Gains:
    """Return Isaac Lab's gains from the config, since those of the simulation are randomised."""
    gains = []
    for gain in ("stiffness", "damping"):
        simulated = _of_first_env(getattr(robot.data, f"joint_{gain}"))
        values = dict(zip(robot.joint_names, simulated, strict=True))
        for actuator in robot.actuators.values():
            setting = getattr(actuator.cfg, gain)
            patterns = setting if isinstance(setting, Mapping) else {".*": setting}
            for pattern, value in patterns.items():
                if value is not None:  # None takes the value of the robot's file
                    names = [
                        joint for joint in actuator.joint_names if re.fullmatch(pattern, joint)
                    ]
                    values |= dict.fromkeys(names, value)
        gains.append(values)
    return gains[0], gains[1]


def _gains_in_mujoco(env: Any, robot: Any) -> Gains:
    """Return mjlab's gains as compiled, without randomisation; 0 for joints without actuator."""
    stiffness, damping = (dict.fromkeys(robot.joint_names, 0.0) for _ in range(2))
    for actuator in robot.spec.actuators:
        joint = actuator.target.split("/")[-1]
        _, of_position, of_velocity = env.sim.mj_model.actuator_biasprm[actuator.id, :3]
        stiffness[joint], damping[joint] = 0.0 - of_position, 0.0 - of_velocity  # never -0.0
    return stiffness, damping


def _of_first_env(value: Any) -> Any:
    """Return the first environment's numbers; Isaac Lab's arrays have a ``torch`` attribute."""
    value = getattr(value, "torch", value)
    return _numbers(value[0]) if isinstance(value, torch.Tensor) else value


def _numbers(value: Any) -> Any:
    """Return a tensor's numbers with as few digits as identify them: 0.7, not 0.699999988."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.cpu().float().numpy().astype(str).astype(float).tolist()
