"""The state, beyond models and optimiser, that a resumed training needs to continue seamlessly."""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rsl_tbptt.algorithms.base import Algorithm
from rsl_tbptt.algorithms.rnd import restore_rnd, state_of_rnd
from rsl_tbptt.checkpoints.describing import plain
from rsl_tbptt.core import hidden_state

COUNTERS = ("tot_timesteps", "tot_time")
"""Counters of rsl_rl's logger."""

OF_EPISODES = """
    rewbuffer lenbuffer cur_reward_sum cur_episode_length
    erewbuffer irewbuffer cur_ereward_sum cur_ireward_sum
"""
"""The logger's values of episodes: the newest returns and lengths, and those still running; some
with RND alone."""

MODELS = ("student", "actor", "critic", "teacher")
"""Models of an algorithm of rsl_rl's own, by the names of its attributes."""

READABLE = (torch.Tensor, torch.dtype, torch.device, bytes, bytearray, complex, set)
"""Types, in addition to plain values, that are read without running code."""


def state_of(runner: Any, in_rollout: bool = False) -> dict[str, Any]:
    """Return the state for :func:`restore`; call it between two iterations.

    It has the logger's counters and RND's schedule, and for a single process the random generators;
    and if the environment has ``state_dict`` and ``load_state_dict``, its state, the hidden states
    of models, and the running episodes. Otherwise a resumed run starts with new episodes and hidden
    states of zero.

    Args:
        runner: A runner of rsl_rl.
        in_rollout: Whether an iteration was interrupted: then random generators and episodes are
            not as they were between two iterations.

    Returns:
        Tensors and plain values.

    Raises:
        ValueError: If the environment's state has anything else.
    """
    state: dict[str, Any] = {"counters": {name: getattr(runner.logger, name) for name in COUNTERS}}
    if getattr(runner.alg, "rnd", None):
        state["rnd"] = state_of_rnd(runner.alg.rnd)
    if in_rollout or runner.is_distributed:
        return state
    state["generators"] = _generators(runner.device)
    if not _restores_itself(runner.env):
        return state
    state["environment"] = readable(runner.env.state_dict(), "env.state_dict()")
    state["hidden_states"] = {
        role: hidden_state.as_tensors(hidden_state.clone(model.get_hidden_state()))
        for role, model in _models(runner.alg).items()
    }
    state["episodes"] = {
        name: list(value) if isinstance(value, deque) else value
        for name, value in _episodes(runner.logger).items()
    }
    return state | (runner.alg.running_state() if isinstance(runner.alg, Algorithm) else {})


def restore(runner: Any, state: Mapping[str, Any] | None) -> bool:
    """Restore a checkpoint's state beyond models and optimiser, before a training continues.

    Args:
        runner: This rank's runner, whose models and optimiser are loaded.
        state: The result of :func:`state_of`, on any device; None without one. Several ranks take
            only the counters and RND's schedule, with a warning.

    Returns:
        Whether the environment continues with the earlier episodes.
    """
    if state is None:
        return False
    is_alone = not runner.is_distributed
    if not is_alone and runner.gpu_global_rank == 0:
        warnings.warn(
            f"The training goes on with {runner.gpu_world_size} ranks: episodes, hidden states and"
            " random numbers, which belong to a rank, begin anew. With save_buffer all ranks"
            " continue with the replay buffer of the first.",
            stacklevel=3,
        )
    goes_on = is_alone and "environment" in state and _restore_episodes(runner, state)
    for name, value in state["counters"].items():
        setattr(runner.logger, name, value)
    if getattr(runner.alg, "rnd", None):  # its rewards belong to a rank's environments
        restore_rnd(runner.alg.rnd, state.get("rnd", {}), runner.env.num_envs if is_alone else 0)
    if is_alone and "generators" in state:
        _set_generators(state["generators"], runner.device)  # last: an environment may draw numbers
    return goes_on


def _restore_episodes(runner: Any, state: Mapping[str, Any]) -> bool:
    """Restore environment, hidden states and running episodes; return whether they fit."""
    if not _restores_itself(runner.env):
        return False
    if (before := len(state["episodes"]["cur_reward_sum"])) != runner.env.num_envs:
        warnings.warn(
            f"The checkpoint was written with {before} environments and goes on with"
            f" {runner.env.num_envs}: hidden states and episodes begin anew.",
            stacklevel=4,
        )
        return False
    runner.env.load_state_dict(state["environment"])  # first, as it may raise
    for role, model in _models(runner.alg).items():
        tensors = state["hidden_states"].get(role, ())  # older checkpoints lack PPO's teacher
        model.reset(hidden_state=hidden_state.from_tensors(tensors))
    if isinstance(runner.alg, Algorithm):
        runner.alg.resume(state)
    episodes = _episodes(runner.logger)
    if episodes.keys() <= state["episodes"].keys():  # else it was written without RND
        for name, kept in episodes.items():
            if isinstance(kept, deque):
                kept.clear()
                kept.extend(state["episodes"][name])
            else:
                kept.copy_(state["episodes"][name])
    return True


def readable(value: Any, name: str) -> Any:
    """Return a value as a checkpoint can hold it, with plain numbers in place of numpy's.

    Args:
        value: Mappings, lists, tuples, tensors and plain values.
        name: Its name for the message.

    Raises:
        ValueError: If it has anything else.
    """

    def check(each: Any) -> Any:
        if isinstance(each, READABLE):
            return each
        if isinstance(each, np.generic):  # a number
            return each.item()
        raise ValueError(
            f"{name} holds a {type(each).__name__}, expected tensors and plain values: no"
            " checkpoint with it could be loaded. For an array return torch.from_numpy(array)."
        )

    return plain(value, check)


def _models(algorithm: Any) -> dict[str, Any]:
    """Return the models whose hidden states continue, by role."""
    if isinstance(algorithm, Algorithm):
        return algorithm.stateful_models()
    return {role: getattr(algorithm, role) for role in MODELS if hasattr(algorithm, role)}


def _episodes(logger: Any) -> dict[str, Any]:
    """Return a logger's values of episodes, by name: deques, and tensors of shape (N,)."""
    return {name: getattr(logger, name) for name in OF_EPISODES.split() if hasattr(logger, name)}


def _restores_itself(env: Any) -> bool:
    """Return whether an environment can save and restore its state."""
    return hasattr(env, "state_dict") and hasattr(env, "load_state_dict")


def _generators(device: str) -> dict[str, Any]:
    """Return the states of the random generators that a training may use."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if torch.device(device).type == "cuda" else None,
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), *rest),
    }


def _set_generators(states: Mapping[str, Any], device: str) -> None:
    """Restore the generators; a GPU's only on a GPU."""
    if "python" in states:  # older checkpoints lack it
        random.setstate(states["python"])
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] is not None and torch.device(device).type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
