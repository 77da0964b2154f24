"""A study: the policies of a preset, trained again with every seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from _preset import Preset, load_preset
from _schema import build, read_mapping


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a file such as ``configs/curves.yaml`` may contain."""

    preset: str
    """File of the preset, relative to the study's."""
    seeds: list[int]
    """Seeds of training; every policy of a seed has it."""
    iterations: dict[str, int]
    """Iterations by policy, where they differ from the preset's."""
    min_share_of_teacher: float
    """Share of the evaluated return of the seed's teacher that is to be reached."""
    max_step_ratio: float
    """Environment steps that may be spent on it, as a multiple of the teacher's."""


def load_study(path: Path) -> tuple[Study, Preset]:
    """Read and check a study.

    Args:
        path: YAML file.

    Returns:
        The study, and its preset with the study's iterations.

    Raises:
        ValueError: If a key is missing or unknown, or a value does not fit.
    """
    study = build(Study, read_mapping(path), path.name)
    preset = load_preset(path.parent / study.preset)
    policies = dict(preset.policies)
    for name, iterations in study.iterations.items():
        if name not in policies or iterations < 1:
            raise ValueError(
                f"{path.name}: iterations: {name} is {iterations}, expected at least 1 for one of"
                f" {list(policies)}."
            )
        policies[name] = dataclasses.replace(policies[name], iterations=iterations)
    return study, dataclasses.replace(preset, policies=policies)


def one_seed_each(preset: Preset, seeds: list[int]) -> Preset:
    """Repeat a preset's policies for every seed.

    Args:
        preset: Policies to train.
        seeds: Seeds of training.

    Returns:
        A preset of the policies ``<name>-<seed>``, each started from one with its seed. It serves
        training and evaluation; its export and verdicts are still the given preset's.
    """
    policies = {
        seeded(name, seed): dataclasses.replace(
            policy,
            seed=seed,
            starts_from=policy.starts_from and seeded(policy.starts_from, seed),
        )
        for seed in seeds
        for name, policy in preset.policies.items()
    }
    return dataclasses.replace(preset, policies=policies)


def seeded(name: str, seed: int) -> str:
    """Name a policy trained with a seed."""
    return f"{name}-{seed}"
