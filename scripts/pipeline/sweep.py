"""The fields of a sweep's file: policies of an experiment, trained again with every seed."""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from scripts.pipeline.experiments import Experiment, Section, load_experiment, read_section
from scripts.pipeline.run import Stage
from scripts.pipeline.stages import evaluation_stage, policy_stages

Measure = Literal["share", "steps", "converged", "lowest"]
"""Measures that a policy of a seed is judged by: see :func:`scripts.pipeline.learning.compare`."""


class Variant(Section):
    """A policy of a sweep: one of the experiment's, with changed values."""

    like: str | None = None
    """Policy of the experiment. None means the one with the same name."""
    starts_from: str | None = None
    iterations: PositiveInt | None = None
    task_overrides: list[str] | None = None
    overrides: list[str] | None = None


class Sweep(Section):
    """The fields of a file such as ``configs/learning_curves.yaml``."""

    experiment: str
    """File of the experiment, relative to the sweep's."""
    seeds: list[NonNegativeInt] = Field(min_length=1)
    """Seeds of training. Every policy is trained with each seed."""
    policies: dict[str, Variant] = Field(min_length=1)
    """The policies by name, in training order. The first is the teacher."""
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
    return sweep, experiment.model_copy(update={"policies": policies, "ablations": {}})


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
