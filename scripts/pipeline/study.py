"""A study: policies like those of a preset, trained again with every seed."""

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from scripts.pipeline.presets import Preset, Section, load_preset, read_section
from scripts.pipeline.run import Stage
from scripts.pipeline.stages import evaluation_stage, policy_stages

Measure = Literal["share", "steps", "converged", "lowest"]
"""What a policy of a seed is judged by: see :class:`scripts.pipeline.learning.Comparison`."""


class Variant(Section):
    """A policy of a study: one of the preset's, and what takes the place of its values."""

    like: str | None = None
    """Policy of the preset; by default the one of the same name."""
    starts_from: str | None = None
    iterations: PositiveInt | None = None
    task_overrides: list[str] | None = None
    overrides: list[str] | None = None


class Study(Section):
    """What a file such as ``configs/learning_curves.yaml`` may contain."""

    preset: str
    """File of the preset, relative to the study's."""
    seeds: list[NonNegativeInt] = Field(min_length=1)
    """Seeds of training; every policy of a seed has it."""
    policies: dict[str, Variant] = Field(min_length=1)
    """The policies by name, in training order. The first is the teacher."""
    evaluate_after: dict[str, list[PositiveInt]] = Field(default={})
    """Iterations after which policies are evaluated, too; ``save_interval`` has to keep them."""
    at_least: dict[Measure, PositiveFloat] = Field(default={})
    """What no policy's measures may fall short of, ..."""
    at_most: dict[Measure, PositiveFloat] = Field(default={})
    """... and exceed."""


def load_study(path: Path) -> tuple[Study, Preset]:
    """Read and check a study.

    Args:
        path: YAML file.

    Returns:
        The study, and its preset with the study's policies and no ablations. That serves training
        and evaluation; its export and verdicts are still those of the preset's file.

    Raises:
        ValueError: If a key is missing or unknown, or a value does not fit.
    """
    study = read_section(Study, path)
    preset = load_preset(path.parent / study.preset)
    policies = {}
    for name, variant in study.policies.items():
        policy = preset.policies.get(variant.like or name)
        starts_from = variant.starts_from or (policy and policy.starts_from)
        if policy is None or starts_from not in (None, *policies):
            raise ValueError(
                f"{path.name}: policies: {name} is like {variant.like or name!r}, expected one of"
                f" {[*preset.policies]} that starts from one before it: {[*policies]}."
            )
        changes = variant.model_dump(exclude={"like"}, exclude_none=True)
        policies[name] = policy.model_copy(update=changes)
    for name, iterations in study.evaluate_after.items():
        if name not in policies or max(iterations, default=0) > policies[name].iterations:
            lengths = {name: policy.iterations for name, policy in policies.items()}
            raise ValueError(
                f"{path.name}: evaluate_after: {name} is {iterations}, expected a policy and"
                f" iterations of its training: {lengths}."
            )
    return study, preset.model_copy(update={"policies": policies, "ablations": {}})


def one_seed_each(preset: Preset, seeds: list[int]) -> Preset:
    """Repeat a preset's policies for every seed.

    Args:
        preset: Policies to train.
        seeds: Seeds of training.

    Returns:
        A preset of the policies ``<name>-<seed>``, each started from one with its seed.
    """
    policies = {
        seeded(name, seed): policy.model_copy(
            update={
                "seed": seed,
                "starts_from": policy.starts_from and seeded(policy.starts_from, seed),
            }
        )
        for seed in seeds
        for name, policy in preset.policies.items()
    }
    return preset.model_copy(update={"policies": policies})


def study_stages(study: Study, preset: Preset, folder: Path, device: str) -> list[Stage]:
    """Lay out a study: its policies with every seed, then their evaluations on the way.

    Args:
        study: Seeds, and what is evaluated on the way.
        preset: The study's preset.
        folder: Run folder.
        device: Device of all stages.

    Returns:
        The stages in the order they run.
    """
    repeated = one_seed_each(preset, study.seeds)
    return policy_stages(repeated, folder, device) + [
        evaluation_stage(repeated, seeded(name, seed), folder, device, after)
        for seed in study.seeds
        for name, iterations in study.evaluate_after.items()
        for after in iterations
    ]


def seeded(name: str, seed: int) -> str:
    """Name a policy trained with a seed."""
    return f"{name}-{seed}"
