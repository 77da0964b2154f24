"""Measure how far back a policy looks: ``rsl-tbptt memory``.

A rollout of the policy in its task is recorded, and replayed without the simulator: once as it is,
and again with one observation group of another environment in a single step. Replays are exact, so
whatever differs between their later actions comes through the memory::

    step          0   1   2   3   4   5
    changed               x                 one observation group, in one step
    lag                   0   1   2   3     influence(lag): how much the action differs
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.tools.run import Run
from rsl_tbptt.tools.simulate.evaluate import SEED, started

NEGLIGIBLE = 0.05
"""A memory that moves the action by less than this share of its standard deviation is not used."""
MOSTLY = 0.1
"""A policy looks back to the last lag with this share of the past's largest influence."""
FLATTEST = 1e-4
"""Least standard deviation of actions that differences are compared with."""
REPLAYS = 16
"""Replays per group, each of which changes one step of every environment."""
FEWEST_STEPS = 40
"""Least steps of a rollout."""
FEWEST_SAMPLES = 8
"""A lag with fewer samples is not measured."""


@torch.inference_mode()
def measure(
    policy: Any, obs: TensorDict, episode_starts: torch.Tensor, seed: int = 0
) -> dict[str, list[float]]:
    """Measure how much past observations move the actions of a policy, without a simulator.

    A group's observation is replaced by that of another environment in the same step. So it stays
    one that the policy knows, of any dtype, and while episodes run in step, of the same phase.

    Args:
        policy: The policy; its memory is changed.
        obs: Observations that it has seen, batch size (T, N), T at least 40, N at least 8.
        episode_starts: True where step t is the first of an episode. Shape: (T, N), bool.
        seed: Seed of the changed steps.

    Returns:
        By group the influence at each lag: root mean square of the action's change, as a share of
        the action's standard deviation. Lag 0 is the current observation.

    Raises:
        ValueError: If there are too few steps or environments, or an action is not finite.
    """
    num_steps, num_envs = episode_starts.shape
    check_enough(num_steps, num_envs)
    generator = torch.Generator().manual_seed(seed)
    actions = _replay(policy, obs, episode_starts)
    if not actions.isfinite().all():
        raise ValueError("An action is NaN or inf, expected finite numbers.")
    # One number for all actions: an action that hardly moves would have a ratio of noise.
    spread = actions.flatten(0, 1).var(0).mean().sqrt().clamp(min=FLATTEST)
    influences = {}
    for group in map(str, obs.keys()):
        by_lag = torch.zeros(2, num_steps, device=actions.device)
        for first in _changed_steps(num_steps, num_envs, generator).to(actions.device):
            changed = _exchanged(obs, group, first, generator)
            squares = (_replay(policy, changed, episode_starts) - actions).square().mean(-1)
            by_lag += _sum_by_lag(squares / spread.square(), first, episode_starts)
        sums, counts = by_lag[:, by_lag[1] >= FEWEST_SAMPLES]  # the first lags: counts never grow
        influences[group] = (sums / counts).sqrt().tolist()
    return influences


def check_enough(num_steps: int, num_envs: int) -> None:
    """Check that a rollout is long and wide enough.

    Raises:
        ValueError: If it is not.
    """
    if num_steps < FEWEST_STEPS:
        raise ValueError(f"steps is {num_steps}, expected at least {FEWEST_STEPS}.")
    if num_envs < FEWEST_SAMPLES:
        raise ValueError(
            f"num_envs is {num_envs}, expected at least {FEWEST_SAMPLES}: fewer samples tell"
            " nothing."
        )


def _changed_steps(num_steps: int, num_envs: int, generator: torch.Generator) -> torch.Tensor:
    """Return the changed step of each environment in each replay. Shape: (REPLAYS, N).

    Every step of the first half is changed about as often: the one that shows what is remembered
    may be rare.
    """
    order = torch.randperm(REPLAYS * num_envs, generator=generator)
    return (order * (num_steps // 2) // (REPLAYS * num_envs)).view(REPLAYS, num_envs)


def _exchanged(
    obs: TensorDict, group: str, first: torch.Tensor, generator: torch.Generator
) -> TensorDict:
    """Return observations with a group of another environment in one step of each, ``first``."""
    values, envs = obs[group], torch.arange(obs.shape[1], device=first.device)
    shift = torch.randint(1, len(envs), (len(envs),), generator=generator).to(first.device)
    new = values.clone()
    new[first, envs] = values[first, (envs + shift) % len(envs)]
    return obs.clone(False).update({group: new})


def _replay(policy: Any, obs: TensorDict, episode_starts: torch.Tensor) -> torch.Tensor:
    """Run the policy over all steps, from an empty memory; return its actions, (T, N, A)."""
    actions = []
    policy.reset()
    for step, starts in enumerate(episode_starts):
        if step:
            policy.reset(starts)
        actions.append(policy(obs[step]).clone())
    return torch.stack(actions)


def _sum_by_lag(
    squares: torch.Tensor, first: torch.Tensor, episode_starts: torch.Tensor
) -> torch.Tensor:
    """Sum changes by the steps since the changed one, over environments in the same episode.

    Args:
        squares: Change of each action. Shape: (T, N).
        first: Changed step of each environment. Shape: (N,).
        episode_starts: True where step t is the first of an episode. Shape: (T, N), bool.

    Returns:
        Sums, and numbers of environments, by lag. Shape: (2, T).
    """
    num_steps, episodes = len(squares), episode_starts.cumsum(0)
    later = first + torch.arange(num_steps, device=first.device)[:, None]
    steps = later.clamp(max=num_steps - 1)
    same = (later < num_steps) & (episodes.gather(0, steps) == episodes.gather(0, first[None]))
    sums = torch.where(same, squares.gather(0, steps), 0.0).sum(1)
    return torch.stack((sums, same.sum(1)))


def length_of(influences: Mapping[str, Sequence[float]]) -> int:
    """Return the steps that a policy looks back in any group; 0 if no past observation counts."""
    past = [[*lags[1:]] for lags in influences.values()]
    largest = max((value for lags in past for value in lags), default=0.0)
    if largest < NEGLIGIBLE:
        return 0
    return max(
        lag for lags in past for lag, value in enumerate(lags, 1) if value >= MOSTLY * largest
    )


def describe(influences: Mapping[str, Sequence[float]], step_seconds: float | None) -> str:
    """Return a table of the influence by lag, and a sentence that says how far back it reaches.

    Args:
        influences: Result of :func:`measure`.
        step_seconds: Duration of a step, None if it is unknown.
    """
    longest = max(map(len, influences.values()))
    lags = [0, *(2**n for n in range(longest.bit_length()) if 2**n < longest)]
    rows = [f"{'lag':>5}" + "".join(f"  {name:>7}" for name in influences)]
    for lag in lags:
        cells = [
            f"  {f'{each[lag]:.3f}' if lag < len(each) else '':>{max(7, len(name))}}"
            for name, each in influences.items()
        ]
        rows.append(f"{lag:>5}" + "".join(cells))
    table = "\n".join(rows)
    length = length_of(influences)
    seconds = f" ({length * step_seconds:.2g} s)" if step_seconds else ""
    sentence = (
        f"The policy looks back {length} steps{seconds}: the last lag with {MOSTLY:.0%} of the"
        f" past's largest influence, of {longest - 1} observed."
        if length
        else f"The memory is not used: no past observation moves an action by {NEGLIGIBLE:.0%} of"
        " its standard deviation."
    )
    return f"{table}\n\n{sentence}"


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
    for _ in range(num_steps):
        seen.append(obs.select(*groups).clone())
        obs, _, dones, _ = env.step(policy(obs))
        policy.reset((dones != 0).long())
        starts.append(dones != 0)
    together: Any = torch.stack(seen)
    return together, torch.stack(starts[:-1])


def analyse(
    run: Run, *, num_envs: int = 64, steps: int = 300, seed: int = SEED, **options: Any
) -> str:
    """Measure how far back a policy looks in its task.

    Args:
        run: The policy.
        num_envs: Number of environments, at least 8.
        steps: Steps of the rollout, at least 40. No lag is longer.
        seed: Seed of the environments.
        options: Task and simulation; see :func:`rsl_tbptt.tools.simulate.evaluate.started`.

    Returns:
        The text of :func:`describe`.

    Raises:
        ValueError: If its task is unknown, or see :func:`measure`.
    """
    check_enough(steps, num_envs)
    with started(run, num_envs=num_envs, seed=seed, **options) as start:
        step_seconds = run.platform.step_seconds(start.env)
        recorded = record(start.env, start.policy, start.obs, steps)
    return describe(measure(start.policy, *recorded, seed), step_seconds)
