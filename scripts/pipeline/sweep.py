"""The fields of a sweep's file: policies of an experiment, trained again with every seed."""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from scripts.pipeline.experiments import Experiment, Policy, Section, load_experiment, read_section
from scripts.pipeline.run import Stage
from scripts.pipeline.stages import evaluation_stage, policy_stages

Measure = Literal["share", "steps", "converged", "lowest"]
"""Measures that a policy of a seed is judged by: see :func:`scripts.pipeline.learning.compare`."""


class Variant(Section):
    """A policy of a sweep: one of the experiment's, with changed values."""

    like: str | None = None
    """Policy of the experiment. None means the one with the same name."""
    starts_from: str | None = None
    run: str | None = None
    iterations: PositiveInt | None = None
    num_envs: PositiveInt | None = None
    task_overrides: list[str] | None = None
    overrides: list[str] | None = None
    trust: list[str] | None = None


class Task(Section):
    """One of several tasks of a sweep."""

    task: str
    """Registered task id, as in the experiment."""
    times: PositiveInt = 1
    """Factor of all policies' iterations."""
    overrides: list[str] = Field(default=[])
    """Settings of the task for all policies, also for evaluation."""


class Sweep(Section):
    """The fields of a file such as ``configs/learning_curves.yaml``."""

    experiment: str
    """File of the experiment, relative to the sweep's."""
    seeds: list[NonNegativeInt] = Field(min_length=1)
    """Seeds of training. Every policy is trained with each seed."""
    policies: dict[str, Variant] = Field(min_length=1)
    """The policies by name, in training order. The first is the teacher."""
    tasks: dict[str, Task] = Field(default={})
    """Tasks by name, which replace the experiment's; each has its own folder and teachers."""
    num_envs: PositiveInt | None = None
    """Environments in training. None means the experiment's number."""
    episodes: int | None = Field(default=None, ge=2)
    """Episodes of an evaluation. None means the experiment's number."""
    evaluate_after: dict[str, list[PositiveInt]] = Field(default={})
    """Extra evaluations after these iterations, by policy; ``save_interval`` has to save there."""
    at_least: dict[Measure, PositiveFloat] = Field(default={})
    """Lower limits of all policies' measures."""
    at_most: dict[Measure, PositiveFloat] = Field(default={})
    """Upper limits of all policies' measures."""


def load_sweep(path: Path) -> tuple[Sweep, Experiment]:
    """Read and check a sweep.

    Args:
        path: YAML file.

    Returns:
        The sweep, and its experiment with the sweep's policies and no ablations, for training and
        evaluation only: export and acceptance checks are still those of the experiment's file.

    Raises:
        ValueError: If a key is missing or unknown, or a value does not fit.
    """
    sweep = read_section(Sweep, path)
    experiment = load_experiment(path.parent / sweep.experiment)
    policies = {}
    for name, variant in sweep.policies.items():
        policy = experiment.policies.get(variant.like or name)
        starts_from = variant.starts_from or (policy and policy.starts_from)
        if policy is None or starts_from not in (None, *policies):
            raise ValueError(
                f"{path.name}: policies: {name} is like {variant.like or name!r}, expected one of"
                f" {[*experiment.policies]} that starts from one before it: {[*policies]}."
            )
        changes = variant.model_dump(exclude={"like"}, exclude_none=True)
        policies[name] = policy.model_copy(update=changes)
    for name, iterations in sweep.evaluate_after.items():
        if name not in policies or max(iterations, default=0) > policies[name].iterations:
            lengths = {name: policy.iterations for name, policy in policies.items()}
            raise ValueError(
                f"{path.name}: evaluate_after: {name} is {iterations}, expected a policy and"
                f" iterations of its training: {lengths}."
            )
    episodes = sweep.episodes or experiment.evaluation.episodes
    changes = {
        "policies": policies,
        "ablations": {},
        "num_envs": sweep.num_envs or experiment.num_envs,
        "evaluation": experiment.evaluation.model_copy(update={"episodes": episodes}),
    }
    return sweep, experiment.model_copy(update=changes)


def one_task_each(sweep: Sweep, experiment: Experiment) -> dict[str, Experiment]:
    """Return a sweep's experiment for each of its tasks, by name; "" if it has only its own."""
    if not sweep.tasks:
        return {"": experiment}
    return {
        name: experiment.model_copy(
            update={"task": variant.task, "policies": _in_task(experiment.policies, variant)}
        )
        for name, variant in sweep.tasks.items()
    }


def _in_task(policies: dict[str, Policy], task: Task) -> dict[str, Policy]:
    changed = {}
    for name, policy in policies.items():
        changes = {"iterations": task.times * policy.iterations}
        overrides = {"task_overrides": [*policy.task_overrides, *task.overrides]}
        changed[name] = policy.model_copy(update=changes | overrides)
    return changed


def smallest(sweep: Sweep, experiment: Experiment) -> tuple[Sweep, Experiment]:
    """Return a sweep and its experiment with one seed and sizes that only try the commands."""
    tiny = {"iterations": 2, "num_envs": 8}
    changes = {
        "policies": {n: p.model_copy(update=tiny) for n, p in experiment.policies.items()},
        "evaluation": experiment.evaluation.model_copy(update={"episodes": 2, "max_steps": 3}),
    }
    tasks = {n: task.model_copy(update={"times": 1}) for n, task in sweep.tasks.items()}
    one = {"seeds": sweep.seeds[:1], "tasks": tasks, "evaluate_after": {}}
    return sweep.model_copy(update=one), experiment.model_copy(update=changes)


def one_seed_each(experiment: Experiment, seeds: list[int]) -> Experiment:
    """Repeat an experiment's policies for every seed.

    Args:
        experiment: Policies to train.
        seeds: Seeds of training.

    Returns:
        An experiment with the policies ``<name>-<seed>``, each started from one with its seed.
    """
    policies = {
        seeded(name, seed): policy.model_copy(
            update={
                "seed": seed,
                "starts_from": policy.starts_from and seeded(policy.starts_from, seed),
            }
        )
        for seed in seeds
        for name, policy in experiment.policies.items()
    }
    return experiment.model_copy(update={"policies": policies})


def sweep_stages(sweep: Sweep, experiment: Experiment, device: str) -> list[Stage]:
    """Return all stages of a sweep: its policies with every seed, then their extra evaluations.

    Args:
        sweep: Seeds and extra evaluations.
        experiment: The sweep's experiment.
        device: Device of all stages.

    Returns:
        The stages in the order they run.
    """
    repeated = one_seed_each(experiment, sweep.seeds)
    return policy_stages(repeated, device) + [
        evaluation_stage(repeated, seeded(name, seed), device, after)
        for seed in sweep.seeds
        for name, iterations in sweep.evaluate_after.items()
        for after in iterations
    ]


def seeded(name: str, seed: int) -> str:
    """Return the name of a policy trained with a seed."""
    return f"{name}-{seed}"
