"""Evaluate a policy on fresh episodes of its task, without exploration noise.

All environments start together and each counts for exactly its first full episode, so short
episodes are not counted more often than long ones. The same seed gives every policy the same
robots and the same starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from scipy import stats
from tensordict import TensorDict

from rsl_tbptt.algorithms.auxiliary.errors import WatchedHeads
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.platforms import Platform, load_platform, platform_of
from rsl_tbptt.policies import build_policy, images_of, read_policy, recorded_latents

CONFIDENCE = 0.95
SECONDS_BETWEEN_REPORTS = 2.0
SEED = 1000
"""Seed of the environments where none is given."""


class Policy(Protocol):
    """What acts in an evaluation: rsl_rl's models, for example."""

    def __call__(self, obs: TensorDict, /) -> torch.Tensor:
        """Return the actions. Shape: (N, A)."""
        ...

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Clear the memory where an episode ended, shape (N,), bool, or everywhere."""
        ...


@dataclass(frozen=True)
class Start:
    """A policy, and environments that have just been reset."""

    platform: Platform
    task: str
    env: Any
    """In rsl_rl's form."""
    policy: MLPModel
    auxiliary: Mapping[str, Any]
    """Its auxiliary heads, as the checkpoint has them."""
    obs: TensorDict
    """What the policy sees first, batch size (N,)."""


def evaluate(
    checkpoint: Path,
    *,
    platform_name: str | None = None,
    task: str | None = None,
    overrides: Sequence[str] = (),
    agent: Path | None = None,
    episodes: int = 256,
    seed: int = SEED,
    device: str = "cpu",
) -> dict[str, Any]:
    """Evaluate a checkpoint; on the screen appears how far it is.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.
        platform_name: One of :data:`rsl_tbptt.platforms.PLATFORMS`. None finds it out.
        task: Registered id, or for rsl_rl alone ``module:function``. None takes the one that the
            policy was trained on.
        overrides: Presets and settings of the task as in training, in the platform's form.
        agent: YAML file of the training's config where none lies beside the checkpoint.
        episodes: Fresh episodes, one per environment, at least 2.
        seed: Seed of the environment.
        device: Device of simulation and policy, ``cpu`` or ``cuda:<index>``.

    Returns:
        JSON values: what :func:`summarise` returns, where it comes from, and the errors of
        auxiliary heads by name, each a root mean square in the target's unit.

    Raises:
        ValueError: If there are less than 2 episodes, the checkpoint cannot be read, or nothing
            tells on what it was trained.
    """
    if episodes < 2:
        raise ValueError(
            f"episodes is {episodes}, expected at least 2: an interval needs a spread."
        )
    with started(
        checkpoint,
        platform_name=platform_name,
        task=task,
        overrides=overrides,
        agent=agent,
        num_envs=episodes,
        seed=seed,
        device=device,
    ) as start:
        with watched(start) as policy:
            returns, lengths = run_first_episodes(start.env, policy, start.obs)
        step_seconds = start.platform.step_seconds(start.env)
    errors = policy.summary() if isinstance(policy, WatchedHeads) else {}
    result = summarise(returns, lengths, step_seconds) | {"auxiliary": errors}
    return result | {"checkpoint": checkpoint.name, "task": start.task, "seed": seed}


@contextmanager
def watched(start: Start) -> Iterator[Policy]:
    """Yield the policy, its auxiliary heads watched where it has some: they read its latent."""
    if not start.auxiliary:
        yield start.policy
        return
    with recorded_latents(start.policy) as latents:
        yield WatchedHeads(start.policy, start.auxiliary, start.obs, latents)


@contextmanager
def started(
    checkpoint: Path,
    *,
    platform_name: str | None = None,
    task: str | None = None,
    overrides: Sequence[str] = (),
    agent: Path | None = None,
    num_envs: int,
    seed: int,
    device: str,
    image_size: tuple[int, int] | None = None,
) -> Iterator[Start]:
    """Simulate the task of a checkpoint up to the first step of its policy.

    Args:
        checkpoint: As in :func:`evaluate`, like what is not listed here.
        platform_name: See there.
        task: See there.
        overrides: See there.
        agent: See there.
        num_envs: Environments.
        seed: Seed of the environments; the same one gives every policy the same starts.
        device: See there.
        image_size: Width and height of the images that the platform's ``renderer`` shall give, in
            pixels. None where none are wanted.

    Yields:
        The policy and its environments.

    Raises:
        ValueError: If the checkpoint cannot be read, or nothing tells on what it was trained.
    """
    saved = read_policy(checkpoint, agent)  # before the simulator, whose start takes a while
    platform = load_platform(platform_name or platform_of(checkpoint))
    task = task or platform.find_trained(checkpoint).task
    with platform.simulated_env(
        task,
        num_envs=num_envs,
        seed=seed,
        device=device,
        clip_actions=saved.config.get("clip_actions"),
        overrides=overrides,
        image_size=image_size,
    ) as env:
        obs = env.get_observations()
        policy = build_policy(saved, device, images_of(obs))
        check_observations(policy, obs, task)
        # Building a policy draws random numbers; seeding again gives all policies the same starts.
        obs = platform.restart(env, seed)
        yield Start(platform, task, env, policy, saved.auxiliary, obs)


def check_observations(policy: MLPModel, obs: TensorDict, task: str) -> None:
    """Check that an environment gives what a policy was trained on.

    Args:
        policy: The policy.
        obs: Observations by group.
        task: What gave them, for the message.

    Raises:
        ValueError: If a group is missing, or their widths are others together.
    """
    groups = [*policy.obs_groups, *getattr(policy, "obs_groups_2d", ())]
    missing = [name for name in groups if name not in obs]
    if missing:
        raise ValueError(
            f"{task} has the observation groups {sorted(map(str, obs.keys()))}, expected {missing}"
            " among them, which the policy sees: name the task that it was trained on."
        )
    width = sum(obs[name].shape[-1] for name in policy.obs_groups)
    if width != policy.obs_dim:
        raise ValueError(
            f"{task} has {width} numbers in the observation groups {groups}, expected"
            f" {policy.obs_dim} as the policy sees: name the task that it was trained on."
        )


@torch.inference_mode()
def run_first_episodes(
    env: Any,
    policy: Policy,
    obs: TensorDict,
    *,
    watch: Callable[[int, TensorDict], None] | None = None,
    max_steps: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Step all environments until each has finished its first episode.

    An environment that is done goes on with a second episode, which counts for nothing.

    Args:
        env: Environment in rsl_rl's form, just reset.
        policy: Policy whose memory is cleared where an episode ends.
        obs: Observations after the reset, batch size (N,).
        watch: Called with the number of each step and its observations before it is taken.
        max_steps: Steps after which unfinished episodes are left. None waits for all.

    Returns:
        Returns, shape (N,), and episode lengths in steps, shape (N,), int64.
    """
    policy.reset()
    running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    returns = torch.zeros(env.num_envs, device=env.device)
    lengths = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
    step, reported = 0, time.monotonic()
    most_steps = min(max_steps or env.max_episode_length, env.max_episode_length)
    while running.any() and step != max_steps:
        if watch is not None:
            watch(step, obs)
        obs, rewards, dones, _ = env.step(policy(obs))
        policy.reset(dones)
        returns += torch.where(running, rewards, 0.0)
        lengths += running
        running &= dones == 0
        step += 1
        if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            print(f"[progress] {step}/{most_steps}", flush=True)
    return returns.cpu(), lengths.cpu()


def summarise(
    returns: torch.Tensor, lengths: torch.Tensor, step_seconds: float | None
) -> dict[str, Any]:
    """Describe episodes.

    Args:
        returns: Sum of rewards of each episode. Shape: (N,).
        lengths: Steps of each episode. Shape: (N,).
        step_seconds: Duration of a step, None where the environment does not tell.

    Returns:
        JSON values: the episodes, their mean return with its interval, their mean length. The
        interval is Student's t: with 100 episodes or more the mean is close enough to normal,
        however the returns are distributed.

    Raises:
        ValueError: If there are fewer than two episodes, which have no interval.
    """
    values = returns.double().tolist()
    if len(values) < 2:
        raise ValueError(f"episodes is {len(values)}, expected at least 2: one has no interval.")
    mean = sum(values) / len(values)
    # Not stats.t.interval, which is NaN where all returns are equal.
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1) * stats.sem(values))
    return {
        "episodes": len(values),
        "mean_return": mean,
        "confidence_level": CONFIDENCE,
        "confidence_interval": [mean - half, mean + half],
        "mean_length": lengths.double().mean().item(),
        "step_seconds": step_seconds,
        "returns": values,
        "lengths": lengths.tolist(),
    }
