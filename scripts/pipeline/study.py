"""A study: the policies of a preset, trained again with every seed."""

from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from scripts.pipeline.presets import Preset, Section, load_preset, read_section


class Study(Section):
    """What a file such as ``configs/curves.yaml`` may contain."""

    preset: str
    """File of the preset, relative to the study's."""
    seeds: list[NonNegativeInt] = Field(min_length=1)
    """Seeds of training; every policy of a seed has it."""
    iterations: dict[str, PositiveInt]
    """Iterations by policy, where they differ from the preset's."""
    min_share_of_teacher: PositiveFloat
    """Share of the evaluated return of the seed's teacher that is to be reached."""
    max_step_ratio: PositiveFloat
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
    study = read_section(Study, path)
    preset = load_preset(path.parent / study.preset)
    policies = dict(preset.policies)
    for name, iterations in study.iterations.items():
        if name not in policies:
            raise ValueError(f"{path.name}: iterations: {name!r} is none of {list(policies)}.")
        policies[name] = policies[name].model_copy(update={"iterations": iterations})
    return study, preset.model_copy(update={"policies": policies})


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


def seeded(name: str, seed: int) -> str:
    """Name a policy trained with a seed."""
    return f"{name}-{seed}"
