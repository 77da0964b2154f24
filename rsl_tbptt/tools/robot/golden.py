"""Record golden trajectories: steps of a trained policy, to check its exports against.

``golden.npz`` has these arrays for T steps: ``reset`` (T,), whether the memory is cleared before
the step; ``obs/GROUP`` (T, ...), observations as the policy sees them; ``raw/GROUP/TERM`` (T, ...),
the terms of a group before noise, clip, scale and history, if the environment has managers;
``actions`` (T, A); ``h`` and ``c`` (T, L, H), the state after the step; and ``auxiliary/NAME``
(T, D), the predictions of an auxiliary head.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.checkpoints.robot import observation_terms
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.models.one_step import STATES, recorded_latents
from rsl_tbptt.tools.simulate.evaluate import Start
from rsl_tbptt.tools.simulate.policies import groups_of

Trajectory = dict[str, np.ndarray]
"""Arrays by name."""


def record(start: Start, heads: Mapping[str, nn.Module], num_steps: int, seed: int) -> Trajectory:
    """Record the only robot of an environment, observation noise included.

    Args:
        start: The policy and its environment.
        heads: Auxiliary heads by name.
        num_steps: T. Halfway the memory is cleared, as at the start of an episode.
        seed: Seed of the episode's start.

    Returns:
        The trajectory.
    """

    def step(actions: torch.Tensor) -> tuple[TensorDict, bool]:
        obs, _, dones, _ = start.env.step(actions)
        return obs, bool(dones[0])

    with recorded_terms(getattr(start.env, "unwrapped", start.env)) as terms:
        first = start.run.platform.restart(start.env, seed)
        return _run(start.policy, heads, num_steps, first, step, terms)


def draw(
    policy: MLPModel,
    heads: Mapping[str, nn.Module],
    groups: Mapping[str, torch.Tensor],
    num_steps: int,
    seed: int,
) -> Trajectory:
    """Draw random observations and record a policy's steps on them.

    They are drawn from the statistics of the policy's normaliser. With others, the policy could
    give the same actions everywhere.

    Args:
        policy: The policy.
        heads: Auxiliary heads by name.
        groups: One observation of each group. Shape: (1, ...).
        num_steps: T.
        seed: Seed of the draw.

    Returns:
        The trajectory. Observations are normal, with the normaliser's mean and standard deviation.
        Images have mean 0 and standard deviation 1 after ``image_scale``. Bytes are uniform, other
        integers 0 or 1.
    """
    generator = torch.Generator().manual_seed(seed)
    statistics = seen_by_normalizer(policy, groups)
    others = (0.0, 1.0 / getattr(policy, "image_scale", 1.0))

    def draw_one() -> TensorDict:
        obs = {}
        for name, like in groups.items():
            mean, std = statistics.get(name, others)
            values = mean + std * torch.randn(like.shape, generator=generator)
            if not like.dtype.is_floating_point:
                high = 256 if like.dtype == torch.uint8 else 2
                values = torch.randint(high, like.shape, generator=generator)
            obs[name] = values.to(like.dtype)
        return TensorDict(obs, batch_size=[1])

    return _run(policy, heads, num_steps, draw_one(), lambda _: (draw_one(), False), {})


@torch.inference_mode()
def _run(
    policy: MLPModel,
    heads: Mapping[str, nn.Module],
    num_steps: int,
    obs: TensorDict,
    step: Callable[[torch.Tensor], tuple[TensorDict, bool]],
    terms: Mapping[str, torch.Tensor],
) -> Trajectory:
    """Run a policy; ``step`` returns the next observations and whether an episode starts."""
    starts, rows = True, []
    for number in range(num_steps):
        starts = starts or number == num_steps // 2
        if starts:
            policy.reset()
        row = {f"obs/{name}": obs[name] for name in groups_of(policy)}
        row |= {f"raw/{name}": value for name, value in terms.items()}
        with recorded_latents(policy) as latents:
            row["actions"] = policy(obs)
        state = as_tensors(policy.get_hidden_state()) if policy.is_recurrent else ()
        row |= {name: each.transpose(0, 1) for name, each in zip(STATES, state, strict=False)}
        row |= {name: head(latents[0]) for name, head in heads.items()}
        arrays = {name: value[0].cpu().numpy().copy() for name, value in row.items()}
        rows.append({"reset": np.asarray(starts), **arrays})
        obs, starts = step(row["actions"])
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@contextmanager
def recorded_terms(env: Any) -> Iterator[Mapping[str, torch.Tensor]]:
    """Yield the last values of the terms of an environment's observation manager, if it has one."""
    manager, last, functions = getattr(env, "observation_manager", None), {}, []
    for group in getattr(manager, "active_terms", ()):
        for name, cfg in observation_terms(manager, group).items():
            functions.append((cfg, cfg.func))
            cfg.func = _Recorder(cfg.func, last, f"{group}/{name}")
    try:
        yield last
    finally:
        for cfg, func in functions:
            cfg.func = func


class _Recorder:
    """Wraps a term's function, or object, and keeps its last value."""

    def __init__(self, func: Any, last: dict[str, torch.Tensor], name: str) -> None:
        self._func, self._last, self._name = func, last, name

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        value = self._func(*args, **kwargs)
        self._last[self._name] = value.clone()  # the manager scales it in place
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._func, name)


def seen_by_normalizer(
    policy: MLPModel, groups: Mapping[str, torch.Tensor]
) -> dict[str, tuple[torch.Tensor, ...]]:
    """Return mean and standard deviation, (1, D) each, of the groups that are normalised.

    Args:
        policy: A model that follows rsl_rl's interface.
        groups: One observation of each group. Shape: (1, ...).
    """
    normalizer: Any = policy.obs_normalizer
    if not hasattr(normalizer, "mean"):
        return {}
    known = torch.stack([normalizer.mean, normalizer.std]).reshape(2, 1, -1)
    widths = {name: groups[name].shape[-1] for name in policy.obs_groups}
    parts = known.split([*widths.values()], dim=-1)
    return {name: tuple(part) for name, part in zip(widths, parts, strict=True)}
