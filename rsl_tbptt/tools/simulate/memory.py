"""Measure what the memory of a policy holds: ``rsl-tbptt memory``.

A rollout of the policy in its task is recorded. Everything else replays the recorded observations
without the simulator: once as they are, and again with some of them changed. Replays are exact, so
whatever differs between their actions comes through the memory::

    step          0   1   2   3   4   5
    changed               x                 one observation group, in one step
    lag                   0   1   2   3     influence(lag): how much the action differs

    changed       x   x   x                 the same, in an episode's first steps together
    lag                   0   1   2   3
"""

import math
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.tools.progress import Progress, track
from rsl_tbptt.tools.run import Run
from rsl_tbptt.tools.simulate.evaluate import SEED, started
from rsl_tbptt.tools.simulate.memory_findings import NEGLIGIBLE, SMALL

MOSTLY = 0.1
"""A policy looks back mostly to the last lag with this share of the past's largest influence."""
TAIL = 0.15
"""The tail ends at the last lag that moves the action by this share of its standard deviation.

That is 2 % of its variance. Eight trained students of short memories had less than 0.1 of what they
did not forget; 8 samples tell that from it, as their root mean square is off by about a quarter.
"""
STARTS = (1, 2, 5, 10)
"""Numbers of an episode's first steps that are changed together: they may show a thing once."""
FLATTEST = 1e-4
"""Least standard deviation of actions that differences are compared with."""
REPLAYS = 16
"""Replays per group, each of which changes one step of every environment."""
OUTLIER = 10.0
"""Size of an outlier, in multiples of the group's largest number."""
FROZEN_STEPS = 10
"""Steps for which a frozen sensor repeats its last observation."""
FEWEST_STEPS = 4 * FROZEN_STEPS
"""Least steps of a rollout: enough must follow after a frozen sensor works again."""
FEWEST_SAMPLES = 8
"""A lag with fewer samples is not measured."""


class Recording:
    """A policy and a rollout that it can replay."""

    def __init__(
        self, policy: MLPModel, obs: TensorDict, episode_starts: torch.Tensor, seed: int
    ) -> None:
        """Take the observations of T steps of N environments; see :func:`measure`."""
        self.policy, self.obs, self.starts = policy, obs, episode_starts
        self.num_steps, self.num_envs = episode_starts.shape
        self.envs = torch.arange(self.num_envs, device=episode_starts.device)
        self.generator = torch.Generator().manual_seed(seed)
        self.episodes = episode_starts.cumsum(0)
        self.after_reset = 0.0
        """Largest change of an action in an episode after the changed one, so far."""
        self.states: list[torch.Tensor] = []
        self.actions = self.replay(note=self.states)
        # One number for all actions: an action that hardly moves would have a ratio of noise.
        spread = self.actions.flatten(0, 1).var(0).mean().sqrt()
        self.spread = spread.clamp(min=FLATTEST)

    def draw(self, low: int, high: int) -> torch.Tensor:
        """Draw an integer for each environment. Shape: (N,)."""
        drawn = torch.randint(low, high, (self.num_envs,), generator=self.generator)
        return drawn.to(self.starts.device)

    def replay(
        self,
        see: Callable[[int], TensorDict] | None = None,
        *,
        carried: bool = False,
        note: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run the policy over all steps.

        Args:
            see: Returns the observations of a step. None replays the recorded ones.
            carried: Start with the state that the policy has, instead of an empty one.
            note: List to which the hidden state of each step is added, (N, units).

        Returns:
            The actions, shape (T, N, A).
        """
        actions = []
        if not carried:
            self.policy.reset()
        for step in range(self.num_steps):
            if step:
                self.policy.reset(self.starts[step])
            actions.append(self.policy(see(step) if see else self.obs[step]).clone())
            if note is not None and (state := as_tensors(self.policy.get_hidden_state())):
                note.append(state[0].transpose(0, 1).flatten(1).clone())
        return torch.stack(actions)

    def by_lag(self, actions: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Sum the actions' mean square changes, in their variances, by the steps since the change.

        Args:
            actions: Actions of a replay. Shape: (T, N, A).
            last: Last changed step of each environment. Shape: (N,).

        Returns:
            Sums over the environments that are still in the same episode, and their number, by lag.
            Shape: (2, T).
        """
        squares = (actions - self.actions).square().mean(-1) / self.spread.square()
        lags = torch.arange(self.num_steps, device=last.device)[:, None]
        steps = (last + lags).clamp(max=self.num_steps - 1)
        episode = self.episodes.gather(0, last[None])
        same = (last + lags < self.num_steps) & (self.episodes.gather(0, steps) == episode)
        later = torch.where(self.episodes > episode, squares, 0.0).max().sqrt()
        self.after_reset = max(self.after_reset, float(later))
        sums = torch.where(same, squares.gather(0, steps), 0.0).sum(1)
        return torch.stack((sums, same.sum(1)))

    def changed(
        self,
        group: str,
        first: torch.Tensor,
        last: torch.Tensor,
        values: Callable[[int], torch.Tensor],
    ) -> torch.Tensor:
        """Replay with other observations of one group; return differences as :meth:`by_lag` does.

        Args:
            group: Name of the group.
            first: First changed step of each environment. Shape: (N,).
            last: Last changed step. Shape: (N,).
            values: Returns the group's other observations of a step, shape (N, ...).
        """

        def see(step: int) -> TensorDict:
            old = self.obs[step][group]
            where = ((first <= step) & (step <= last)).view(-1, *[1] * (old.dim() - 1))
            new = torch.where(where, values(step), old)
            return self.obs[step].clone(False).update({group: new})

        return self.by_lag(self.replay(see), last)

    def exchanged(self, group: str, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Do so with observations of another environment in the same steps."""
        other = (self.envs + self.draw(1, self.num_envs)) % self.num_envs
        values = self.obs[group]
        return self.changed(group, first, last, lambda step: values[step][other])


def _check_enough(num_steps: int, num_envs: int) -> None:
    """Check that a rollout is long and wide enough.

    Raises:
        ValueError: If it is not.
    """
    if num_steps < FEWEST_STEPS:
        raise ValueError(f"steps is {num_steps}, expected at least {FEWEST_STEPS}.")
    if num_envs < FEWEST_SAMPLES:
        raise ValueError(
            f"num_envs is {num_envs}, expected at least {FEWEST_SAMPLES}: a fault is measured once"
            " in each, and fewer samples tell nothing."
        )


@torch.inference_mode()
def measure(
    policy: Any, obs: TensorDict, episode_starts: torch.Tensor, seed: int = 0
) -> dict[str, Any]:
    """Measure what the memory of a policy holds, without a simulator.

    A group's observation is replaced by that of another environment in the same step. So it stays
    one that the policy knows, of any dtype, and while episodes run in step, of the same phase. It
    changes what differs between environments: the information that the group brings.

    Args:
        policy: The policy; its memory is changed.
        obs: Observations that it has seen, batch size (T, N), T at least 40, N at least 8.
        episode_starts: True where step t is the first of an episode. Shape: (T, N), bool.
        seed: Seed of the changed steps.

    Returns:
        JSON values: ``groups`` by name, each with its ``influence`` by lag (root mean square of the
        action's change, as a share of the action's standard deviation) and its ``length`` in steps;
        the same of an episode's first ``start_steps``, changed together, as ``start_influence``;
        the ``steps`` to which the ``tail`` of either reaches, and that an ``outlier`` and a
        ``frozen`` sensor stay in the action, with the lags that were ``observed``; the
        ``influence``, ``length`` and ``tail`` of all groups;
        ``missed_reset``, the steps that the state of an earlier episode stays in the action;
        ``after_reset``, the largest change of an action in an episode after the changed one; and
        the hidden state's ``units``, how many are ``moving`` (with 1 % of the largest variance) and
        their ``effective`` number (participation ratio).

    Raises:
        ValueError: If there are too few steps or environments, or an action is not finite.
    """
    _check_enough(*episode_starts.shape)
    recording = Recording(policy, obs, episode_starts, seed)
    if not recording.actions.isfinite().all():
        raise ValueError("An action is NaN or inf, expected finite numbers.")
    names = track([*obs.keys()], "observation groups")
    groups = {str(name): _measure_group(recording, str(name)) for name in names}
    after_reset = recording.after_reset
    recording.replay()  # leaves the states of the last episodes, which are then carried over
    carried = recording.by_lag(recording.replay(carried=True), 0 * recording.envs)
    # Groups differ in their last lags with enough samples.
    by_lag = zip(*(group["influence"] for group in groups.values()), strict=False)
    influence = [math.hypot(*values) for values in by_lag]
    return {
        "length": length_of(torch.tensor(influence)),
        "influence": influence,
        "tail": max((group["tail"] for group in groups.values()), key=itemgetter("steps")),
        "groups": groups,
        "missed_reset": _stay(_influence(carried), SMALL),
        "after_reset": after_reset,
        **_units(recording.states),
    }


def _measure_group(recording: Recording, group: str) -> dict[str, Any]:
    """Return the measurements of a group."""
    num_envs, num_first = recording.num_envs, recording.num_steps // 2
    # Every step is changed about as often: the one that shows what is remembered may be rare.
    order = torch.randperm(REPLAYS * num_envs, generator=recording.generator)
    firsts = (order * num_first // (REPLAYS * num_envs)).view(REPLAYS, num_envs)
    by_lag = [recording.exchanged(group, first, first) for first in firsts.to(recording.envs)]
    influence = _influence(torch.stack(by_lag).sum(0))
    zero = 0 * recording.envs
    starts = {n: _influence(recording.exchanged(group, zero, zero + n - 1)) for n in STARTS}
    tails = {n: _stay(start[1:], TAIL) for n, start in starts.items()}
    longest = max(STARTS, key=lambda n: tails[n]["steps"])
    return {
        "length": length_of(influence),
        "influence": influence.tolist(),
        "start_steps": longest,
        "start_influence": starts[longest].tolist(),
        "tail": max(tails[longest], _stay(influence[1:], TAIL), key=itemgetter("steps")),
        **_measure_faults(recording, group, recording.draw(1, num_first)),
    }


def _measure_faults(
    recording: Recording, group: str, first: torch.Tensor
) -> dict[str, dict[str, int]]:
    """Return how long an outlier and a frozen sensor stay in the actions, from a first step on."""
    values, signs = recording.obs[group], 2.0 * recording.draw(0, 2) - 1.0
    broken = {
        "outlier": (first, _outliers(values, signs)),
        "frozen": (first + FROZEN_STEPS - 1, values[first - 1, recording.envs]),
    }
    found = {}
    for name, (last, value) in broken.items():
        by_lag = recording.changed(group, first, last, lambda _, value=value: value)
        found[name] = _stay(_influence(by_lag)[1:], SMALL)
    return found


def _outliers(values: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """Return huge observations, (N, ...), of a group's values, (T, N, ...), with signs, (N,)."""
    dtype = values.dtype
    size = OUTLIER * (max(float(values.max()), -float(values.min())) or 1.0)
    huge = (size * signs).view(-1, *[1] * (values.dim() - 2)).expand(values.shape[1:])
    if dtype == torch.bool:
        return huge > 0
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return huge.clamp(limits.min, limits.max).to(dtype)


def _influence(by_lag: torch.Tensor) -> torch.Tensor:
    """Return root mean squares of the lags with enough samples, from sums and counts, (2, T)."""
    sums, counts = by_lag[:, by_lag[1] >= FEWEST_SAMPLES]  # the first lags: counts never grow
    return (sums / counts).sqrt()


def length_of(influence: torch.Tensor) -> int:
    """Return the steps that a policy mostly looks back; 0 if no past observation counts.

    Args:
        influence: Influence by lag; lag 0 is the current observation. Shape: (K + 1,).
    """
    past = influence[1:]
    if not len(past) or past.max() < NEGLIGIBLE:
        return 0
    return 1 + int((past >= MOSTLY * past.max()).nonzero().max())


def _stay(influence: torch.Tensor, share: float) -> dict[str, int]:
    """Return for how many steps an influence is at least a share, and how many were observed."""
    there = (influence >= share).nonzero()
    return {"steps": 1 + int(there.max()) if len(there) else 0, "observed": len(influence)}


def _units(states: list[torch.Tensor]) -> dict[str, Any]:
    """Return how many units of a state are used, from its values in all steps."""
    if not states:
        return {"units": 0, "moving": 0, "effective": 0.0}
    centred = torch.cat(states).double()
    centred -= centred.mean(0)
    covariance = centred.T @ centred / len(centred)
    variances, total = covariance.diagonal(), covariance.square().sum()
    return {
        "units": len(variances),
        "moving": int((variances > 0.01 * variances.max()).sum()),
        "effective": float(variances.sum() ** 2 / total) if total > 0 else 0.0,
    }


@torch.inference_mode()
def record(
    env: Any, policy: Any, obs: TensorDict, num_steps: int
) -> tuple[TensorDict, torch.Tensor]:
    """Let a policy act, and keep what it sees.

    Args:
        env: Environment in rsl_rl's form, just reset.
        policy: Policy whose memory is cleared where an episode ends.
        obs: Observations after the reset, batch size (N,).
        num_steps: Number of steps T.

    Returns:
        The observations of the policy's groups, batch size (T, N), and where episodes start, shape
        (T, N), bool: the arguments of :func:`measure`.
    """
    groups = [*policy.obs_groups, *getattr(policy, "obs_groups_2d", ())]
    policy.reset()
    seen, starts = [], [torch.ones(env.num_envs, dtype=torch.bool, device=env.device)]
    with Progress("steps of the rollout", num_steps) as progress:
        for step in range(num_steps):
            seen.append(obs.select(*groups).clone())
            obs, _, dones, _ = env.step(policy(obs))
            policy.reset((dones != 0).long())
            starts.append(dones != 0)
            progress.update(step + 1)
    together: Any = torch.stack(seen)
    return together, torch.stack(starts[:-1])


def gradient_steps(config: Mapping[str, Any]) -> int | None:
    """Return the steps that a training's gradient flows back; None if its config does not tell."""
    algorithm = config.get("algorithm") or {}
    distils = "Distillation" in str(algorithm.get("class_name"))
    default = DistillationOptions().gradient_length if distils else None
    limits = (algorithm.get("gradient_length", default), config.get("num_steps_per_env"))
    return min((limit for limit in limits if algorithm and limit), default=None)


def analyse(
    run: Run, *, num_envs: int = 64, steps: int = 300, seed: int = SEED, **options: Any
) -> dict[str, Any]:
    """Measure what the memory of a policy holds, in its task.

    Args:
        run: The policy.
        num_envs: Number of environments, at least 8.
        steps: Steps of the rollout, at least 40. No lag is longer.
        seed: Seed of the environments.
        options: Task and simulation; see :func:`rsl_tbptt.tools.simulate.evaluate.started`.

    Returns:
        The values of :func:`measure`; the checkpoint, the task, ``step_seconds`` and the
        ``gradient_length`` of the training, None if unknown.

    Raises:
        ValueError: If its task is unknown, or see :func:`measure`.
    """
    _check_enough(steps, num_envs)
    with started(run, num_envs=num_envs, seed=seed, **options) as start:
        step_seconds = run.platform.step_seconds(start.env)
        recorded = record(start.env, start.policy, start.obs, steps)
    return {
        "checkpoint": run.checkpoint.name,
        "task": start.task,
        "step_seconds": step_seconds,
        "gradient_length": gradient_steps(run.config),
        **measure(start.policy, *recorded, seed),
    }
