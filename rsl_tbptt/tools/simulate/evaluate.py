"""Evaluate a policy on fresh episodes of its task, without exploration noise.

All environments start together and each counts for exactly its first full episode, so short
episodes are not counted more often than long ones. The same seed gives every policy the same
robots and the same starts.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from tensordict import TensorDict

from rsl_tbptt.algorithms.curricula import COUNTER, count_from
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.tools.platforms import Simulation
from rsl_tbptt.tools.run import Run
from rsl_tbptt.tools.simulate.policies import build_policy, check_groups

MARK = b'"confidence_interval"'
"""Bytes in every file of an evaluation."""
CONFIDENCE = 0.95
FAST_HZ = 5.0
"""Legs do not step faster; what a policy does above is shaking."""
SEED = 1000
"""Default seed of the environments."""


@dataclass(frozen=True)
class Start:
    """A policy, and environments that have just been reset."""

    run: Any
    """A :class:`Run`, or a bundle that needs none, ``LoneBundle``."""
    task: str
    env: Any
    """In rsl_rl's form."""
    policy: Any
    """The model, or what is deployed."""
    obs: TensorDict
    """The policy's first observations, batch size (N,)."""


def evaluate(
    run: Any,
    *,
    exported: Callable[[Start], Any] | None = None,
    form: str = "checkpoint",
    episodes: int = 256,
    max_steps: int | None = None,
    seed: int = SEED,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate a policy.

    Args:
        run: The policy; see :class:`Start`.
        exported: Makes the policy that acts in place of the checkpoint's. None evaluates that.
        form: Name of what acts, for the result.
        episodes: Number of fresh episodes, one per environment, at least 2.
        max_steps: Steps after which an unfinished episode is counted as it is, at least 1. None
            means one more than the environment's ``max_episode_length``.
        seed: Seed of the environment.
        options: Task and simulation; see :func:`started`.

    Returns:
        JSON values: those of :func:`statistics_of`; the checkpoint, the task and the seed.

    Raises:
        ValueError: If there are fewer than 2 episodes or no steps, the task is unknown, the
            exported policy is another one, or a return is not finite.
    """
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}, expected at least 1.")
    if episodes < 2:
        raise ValueError(f"episodes is {episodes}, expected at least 2: one has no interval.")
    with started(run, num_envs=episodes, seed=seed, **options) as start:
        step_seconds = run.platform.step_seconds(start.env)
        policy = exported(start) if exported else start.policy
        found = statistics_of(start.env, policy, start.obs, step_seconds, max_steps)
    if unfinished := found["unfinished"]:
        warnings.warn(
            f"{unfinished} of {episodes} episodes had not ended after {found['max_steps']} steps,"
            " expected all to end: they are counted as they are. Raise --max-steps, or set a time"
            " limit.",
            stacklevel=2,
        )
    return found | {
        "checkpoint": run.checkpoint.name,
        "form": form,
        "task": start.task,
        "seed": seed,
        COUNTER: run.counted_steps,
    }


@contextmanager
def started(
    run: Any,
    *,
    task: str | None = None,
    overrides: Sequence[str] = (),
    num_envs: int,
    seed: int = SEED,
    device: str = "cpu",
) -> Iterator[Start]:
    """Start a simulation of a run's task, ready for the first step of its policy.

    Curricula that count steps stand where they were in the training.

    Args:
        run: The policy, and the platform that simulates; see :class:`Start`.
        task: Registered id, or ``module:function`` for rsl_rl alone. None means the task that the
            policy was trained on.
        overrides: Presets and settings of the task as in training, in the platform's form.
        num_envs: Number of environments.
        seed: Seed of the environments; the same one gives every policy the same starts.
        device: Device of simulation and policy, ``cpu`` or ``cuda:<index>``.

    Yields:
        The policy and its environments.

    Raises:
        ValueError: If the task is unknown, or does not fit the policy.
    """
    simulation = Simulation(
        task=task or run.trained_task(),
        num_envs=num_envs,
        seed=seed,
        device=device,
        clip_actions=run.clip_actions,
        overrides=overrides,
    )
    with run.platform.simulated_env(simulation) as env:
        obs = env.get_observations()
        check_groups(run, obs, simulation.task)
        policy = build_policy(run, device, obs) if isinstance(run, Run) else run
        count_from(env, run.counted_steps)
        # Building a policy draws random numbers; seeding again gives all policies the same starts.
        obs = run.platform.restart(env, seed)
        yield Start(run, simulation.task, env, policy, obs)


def longest_episode(env: Any) -> int:
    """Return the steps after which every first episode has ended; time limits may differ."""
    return int(torch.as_tensor(env.max_episode_length).max()) + 1


def statistics_of(
    env: Any, policy: Any, obs: TensorDict, step_seconds: float | None, max_steps: int | None = None
) -> dict[str, Any]:
    """Let a policy act in the first episodes of environments, and return their statistics.

    Args:
        env: Environment in rsl_rl's form, just reset.
        policy: The policy.
        obs: Observations after the reset, batch size (N,).
        step_seconds: Duration of a step, None if the environment does not provide it.
        max_steps: Steps after which unfinished episodes are broken off, None for the longest.

    Returns:
        JSON values: those of :func:`summarise` and of ``EpisodeFacts.summary``, the most steps, and
        how many episodes had not ended.

    Raises:
        ValueError: If a return is not finite.
    """
    max_steps, facts = max_steps or longest_episode(env), EpisodeFacts(env)
    returns, lengths, unfinished = run_first_episodes(
        env, policy, obs, max_steps=max_steps, facts=facts
    )
    found = summarise(returns, lengths, step_seconds) | facts.summary(lengths, step_seconds)
    return found | {"max_steps": max_steps, "unfinished": unfinished}


@torch.inference_mode()
def run_first_episodes(
    env: Any, policy: Any, obs: TensorDict, *, max_steps: int, facts: EpisodeFacts | None = None
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Step all environments until each has finished its first episode, or for ``max_steps``.

    An environment that finishes early continues with a second episode, which is not counted.

    Args:
        env: Environment in rsl_rl's form, just reset.
        policy: It returns actions, (N, A), when it is called with observations, and its
            ``reset(dones)`` clears its memory where an episode ends. A model has the same memory
            afterwards as before, so that its training can go on.
        obs: Observations after the reset, batch size (N,).
        max_steps: Steps after which unfinished episodes are broken off.
        facts: Counts how the episodes end. None counts nothing.

    Returns:
        Returns, shape (N,), episode lengths in steps, shape (N,), int64, and the number of
        unfinished episodes.

    Raises:
        ValueError: If a return is not finite.
    """
    memory = policy.get_hidden_state() if isinstance(policy, MLPModel) else None
    policy.reset()
    running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    returns = torch.zeros(env.num_envs, device=env.device)
    lengths = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
    step = 0
    while running.any() and step < max_steps:
        actions = policy(obs)
        obs, rewards, dones, extras = env.step(actions)
        policy.reset((dones != 0).long())
        if facts is not None:
            facts.note(actions, extras, running, dones)
        returns += torch.where(running, rewards, 0.0)
        step += 1
        _check_finite(returns, rewards, step)
        lengths += running
        running &= dones == 0
    if isinstance(policy, MLPModel):
        policy.reset(hidden_state=memory)
    return returns.cpu(), lengths.cpu(), int(running.sum())


def _check_finite(returns: torch.Tensor, rewards: torch.Tensor, step: int) -> None:
    """Check the returns after a number of steps.

    Raises:
        ValueError: If one is not finite.
    """
    if not (finite := returns.isfinite()).all():
        first = int((~finite).nonzero()[0])
        raise ValueError(
            f"The return of environment {first} is {returns[first].item()} after {step} steps,"
            f" expected a finite number: its reward is {rewards[first].item()}."
        )


def summarise(
    returns: torch.Tensor, lengths: torch.Tensor, step_seconds: float | None
) -> dict[str, Any]:
    """Return the statistics of episodes.

    Args:
        returns: Sum of rewards of each episode. Shape: (N,).
        lengths: Steps of each episode. Shape: (N,), N at least 2.
        step_seconds: Duration of a step, None if the environment does not provide it.

    Returns:
        JSON values: the episodes, their mean return with its interval, and their mean length. The
        interval is Student's t: with 100 episodes or more the mean is close enough to normal,
        however the returns are distributed.
    """
    values = returns.double().tolist()
    mean, *interval = mean_and_interval(values)
    return {
        "episodes": len(values),
        "mean_return": mean,
        "confidence_level": CONFIDENCE,
        "confidence_interval": interval,
        "mean_length": lengths.double().mean().item(),
        "step_seconds": step_seconds,
        "returns": values,
        "lengths": lengths.tolist(),
    }


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of at least two values and the ends of its interval, by Student's t."""
    mean = sum(values) / len(values)
    # Not stats.t.interval, which is NaN where all values are equal.
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1) * stats.sem(values))
    return mean, mean - half, mean + half


class EpisodeFacts:
    """Collects how the first episodes of environments end, their reward, and how they move.

    Isaac Lab's and mjlab's managers provide this by name. Other environments mark the episodes that
    ended by time in ``extras["time_outs"]``; they can give ``extras["reward_terms"]`` by name and
    ``extras["velocity_error"]`` in m/s, shape (N,) each. Any environment can mark in
    ``extras["success"]``, shape (N,), bool, which of the episodes that end with a step succeeded.
    """

    def __init__(self, env: Any) -> None:
        """Take an environment, in rsl_rl's form."""
        inner = getattr(env, "unwrapped", env)
        self._terminations = getattr(inner, "termination_manager", None)
        self._rewards = getattr(inner, "reward_manager", None)
        is_rate = getattr(self._rewards, "_scale_by_dt", True)  # mjlab's switch
        self._reward_seconds = inner.step_dt if self._rewards is not None and is_rate else 1.0
        commands = getattr(inner, "command_manager", None)
        terms = map(commands.get_term, commands.active_terms) if commands is not None else ()
        self._velocity = next((term for term in terms if hasattr(term, "vel_command_b")), None)
        self._ends: dict[str, Any] = defaultdict(int)
        self._sums: dict[str, Any] = defaultdict(float)
        self._velocity_error: Any = 0.0
        self._num_moving: Any = 0
        self._actions: list[torch.Tensor] = []

    def note(
        self,
        actions: torch.Tensor,
        extras: Mapping[str, Any],
        running: torch.Tensor,
        dones: torch.Tensor,
    ) -> None:
        """Count one step of all environments.

        Args:
            actions: The policy's. Shape: (N, A).
            extras: The environment's extras of the step.
            running: Whether the step belongs to a first episode. Shape: (N,), bool.
            dones: Whether the step ended an episode. Shape: (N,).
        """
        ended = running & (dones != 0)
        for name, happened in self._reasons(extras).items():
            self._ends[name] += (happened.to(ended.device).bool().view_as(ended) & ended).sum()
        if self._rewards is not None:
            # Not times running: NaN of a later episode would stay.
            rewards = torch.where(running[:, None], self._rewards._step_reward, 0.0)
            sums = rewards.sum(0) * self._reward_seconds
            for name, value in zip(self._rewards.active_terms, sums, strict=True):
                self._sums[name] += value
        if self._velocity is not None:
            moving = running & (dones == 0)  # others have been reset
            self._velocity_error += torch.where(moving, _distance(self._velocity), 0.0).sum()
            self._num_moving += moving.sum()
        for name, values in extras.get("reward_terms", {}).items():
            self._sums[name] += torch.where(running, values, 0.0).sum()
        if "velocity_error" in extras:
            self._velocity_error += torch.where(running, extras["velocity_error"], 0.0).sum()
            self._num_moving += running.sum()
        self._actions.append(actions.clone())

    def _reasons(self, extras: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        found = {"success": extras["success"]} if "success" in extras else {}
        if self._terminations is not None:
            names = self._terminations.active_terms
            return found | {f"ended_by/{n}": self._terminations.get_term(n) for n in names}
        if "time_outs" in extras:
            by_time = extras["time_outs"].bool()
            return found | {"ended_by/time_out": by_time, "ended_by/termination": ~by_time}
        return found

    def summary(self, lengths: torch.Tensor, step_seconds: float | None) -> dict[str, Any]:
        """Return the statistics per episode.

        Args:
            lengths: Steps of each first episode. Shape: (N,).
            step_seconds: Duration of a step, None if the environment does not provide it.

        Returns:
            JSON values: ``ended_by``, the share of episodes that ended for each reason, by name;
            ``timed_out``, the share that ended by time; ``success_rate``; and ``reward_terms``, the
            mean sum of each term over an episode, by name; ``velocity_error`` in the plane, in
            m/s, its mean over all steps; and what :func:`unrest` tells of the actions. Unknown
            values are left out.
        """
        num_episodes = len(lengths)
        shares = {name: int(count) / num_episodes for name, count in self._ends.items()}
        found: dict[str, Any] = {}
        if "success" in shares:
            found["success_rate"] = shares.pop("success")
        if shares:
            found["ended_by"] = {n.removeprefix("ended_by/"): s for n, s in shares.items()}
            found["timed_out"] = sum(s for n, s in found["ended_by"].items() if self._is_limit(n))
        if self._sums:
            sums = self._sums.items()
            found["reward_terms"] = {name: float(value) / num_episodes for name, value in sums}
        if self._num_moving:
            found["velocity_error"] = float(self._velocity_error / self._num_moving)
        return found | unrest(torch.stack(self._actions).cpu(), lengths, step_seconds)

    def _is_limit(self, reason: str) -> bool:
        """Return whether a reason is a time limit."""
        if self._terminations is None:
            return reason == "time_out"
        return bool(self._terminations.get_term_cfg(reason).time_out)


def unrest(
    actions: torch.Tensor, lengths: torch.Tensor, step_seconds: float | None
) -> dict[str, float]:
    """Return how much actions shake, before any clipping.

    Args:
        actions: Of each step, on a CPU. Shape: (T, N, A).
        lengths: Steps of each episode, from the first one. Shape: (N,).
        step_seconds: Duration of a step, None if it is unknown.

    Returns:
        ``jitter``, the mean square of the second difference, if an episode has three steps; and
        ``power_above_5_hz``, the share of the power, without the means of episodes, at frequencies
        above ``FAST_HZ``, if the duration of a step is known and the actions move.
    """
    counts = torch.arange(len(actions))[:, None] < lengths
    found, power = {}, actions.new_zeros(2)
    second = actions.diff(n=2, dim=0).square().mean(-1)[counts[2:]]
    if len(second):
        found["jitter"] = second.mean().item()
    for length in lengths.unique().tolist() if step_seconds else ():
        moves = actions[:length, lengths == length]
        moves = moves - moves.mean(0)
        by_frequency = torch.fft.fft(moves, dim=0).abs().square().sum((1, 2)) / length
        is_fast = torch.fft.fftfreq(length, step_seconds).abs() > FAST_HZ
        power += torch.stack((by_frequency[is_fast].sum(), by_frequency.sum()))
    if power[1] > 0:
        found["power_above_5_hz"] = (power[0] / power[1]).item()
    return found


def _distance(command: Any) -> torch.Tensor:
    """Return how far each base's velocity in the plane is from the commanded one, in m/s.

    Args:
        command: A velocity command of mjlab or Isaac Lab.
    """
    data = command.robot.data
    # mjlab's name, then Isaac Lab's, whose 3.0 wraps tensors.
    velocity = getattr(data, "root_link_lin_vel_b", None)
    velocity = data.root_lin_vel_b if velocity is None else velocity
    velocity = getattr(velocity, "torch", velocity)
    return (command.vel_command_b[:, :2] - velocity[:, :2]).norm(dim=-1)
