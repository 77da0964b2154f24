"""Tell how evenly the policies of a sweep walk with both sides, and how fast they learned.

In an even gait, left and right joints make the same motion, half a cycle apart. Randomisation
treats both sides alike, so over many robots only the policy makes their mean angles or standard
deviations differ. For Isaac Lab's quadrupeds with "left" and "right" in the names of their joints.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tabulate import tabulate

from rsl_tbptt.checkpoints.describing import agent_config
from rsl_tbptt.tools.run import read_run
from rsl_tbptt.tools.runs.run_doctor import read_curves
from rsl_tbptt.tools.simulate.evaluate import run_first_episodes, started
from scripts.pipeline.experiments import Experiment
from scripts.pipeline.learning import KEPT, kept_from, spread
from scripts.pipeline.run import default_run
from scripts.pipeline.sweep import Sweep, load_sweep, seeded

FORMS = {f"million steps to {KEPT:.0%}": ".2f", "angles, rad": ".4f", "deviations, %": ".1f"}
"""Columns of measures, and how their numbers are written."""
NUM_LAST = 10
"""Iterations whose mean return is the final one; a single one is noisy."""


def main() -> None:
    """Evaluate the finished trainings of a sweep and print a table."""
    parser = argparse.ArgumentParser(prog="python -m scripts.gait", description=__doc__)
    parser.add_argument("config", type=Path, help="the sweep, YAML")
    parser.add_argument("--output", type=Path, help="its run folder, by default runs/<sweep>")
    parser.add_argument("--episodes", type=int, default=256)
    args = parser.parse_args()
    sweep, experiment = load_sweep(args.config)
    rows = list(rows_of(sweep, experiment, args.output or default_run(args.config), args.episodes))
    print(tabulate(rows, ("policy", "seed", *FORMS), "github", ("", "", *FORMS.values())))
    print(f"\nMean over seeds, 95 % confidence:\n\n{summary(rows, sweep)}")


def summary(rows: list[list[Any]], sweep: Sweep) -> str:
    """Return a table of means over seeds, also of what a variant has more than its model."""
    of = {name: [row[2:] for row in rows if row[0] == name] for name in sweep.policies}
    for name, variant in sweep.policies.items():
        if variant.like and len(of[name]) == len(of[variant.like]):
            pairs = zip(of[name], of[variant.like], strict=True)
            of[f"{name} less {variant.like}"] = [[*map(_less, *pair)] for pair in pairs]
    table = [
        [name, *map(spread, zip(*seeds, strict=True), FORMS.values())] for name, seeds in of.items()
    ]
    return tabulate(table, ("policy", *FORMS), "github", disable_numparse=True)


def _less(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def rows_of(
    sweep: Sweep, experiment: Experiment, folder: Path, episodes: int
) -> Iterator[list[Any]]:
    """Yield a row for each policy and seed that has been trained."""
    for name, policy in experiment.policies.items():
        for seed in sweep.seeds:
            record = folder / "stages" / f"{seeded(name, seed)}.json"
            if not record.exists():
                continue
            checkpoint = folder / json.loads(record.read_text())["output"]
            num_envs = policy.num_envs or experiment.num_envs
            steps = num_envs * agent_config(checkpoint)["num_steps_per_env"]
            done = learned_after(checkpoint)
            learned = None if done is None else done * steps / 1e6
            yield [name, seed, learned, *asymmetry(checkpoint, episodes, experiment)]


def learned_after(checkpoint: Path) -> int | None:
    """Return the iterations after which the return stayed above 90 % of the final one."""
    iterations, returns = read_curves(checkpoint.parent)["Train/mean_reward"]
    curve = {i + 1: value for i, value in zip(iterations, returns, strict=True)}
    return kept_from(curve, fmean(returns[-NUM_LAST:]))


def asymmetry(checkpoint: Path, episodes: int, experiment: Experiment) -> tuple[float, float]:
    """Return how left and right joints differ over all robots of an evaluation.

    Args:
        checkpoint: The policy.
        episodes: Number of robots, one episode each.
        experiment: Task and seed of the evaluation.

    Returns:
        Root mean square over the pairs of joints of the difference of their mean angles, in rad;
        and the mean difference of their standard deviations, in % of these.
    """
    run, seed = read_run(checkpoint, experiment.platform), experiment.evaluation.seed
    with started(run, task=experiment.task, num_envs=episodes, seed=seed) as start:
        robot, angles = start.env.unwrapped.scene["robot"], []

        def watch(step: int, obs: Any) -> None:
            angles.append(robot.data.joint_pos.torch.clone())

        longest = int(start.env.max_episode_length)
        run_first_episodes(start.env, start.policy, start.obs, max_steps=longest, watch=watch)
        names = robot.joint_names
    return differences(torch.stack(angles).flatten(0, 1), names)


def differences(angles: torch.Tensor, names: list[str]) -> tuple[float, float]:
    """Return the values of :func:`asymmetry` for angles of named joints, shape (samples, J)."""
    left = [names.index(name) for name in names if "left" in name]
    right = [names.index(names[joint].replace("left", "right")) for joint in left]
    mean, std = angles.mean(0), angles.std(0)
    apart = (mean[left] - mean[right]).square().mean().sqrt()
    unlike = (std[left] - std[right]).abs() / (0.5 * (std[left] + std[right]))
    return float(apart), 100.0 * float(unlike.mean())


if __name__ == "__main__":
    main()
