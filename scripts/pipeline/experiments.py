"""The fields of an experiment's file, such as ``configs/demo.yaml``."""

from pathlib import Path
from typing import Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "configs" / "demo.yaml"
FINETUNE = REPOSITORY / "configs" / "finetune.yaml"


class Section(BaseModel):
    """A section of a file; it refuses keys that are not fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


AnySection = TypeVar("AnySection", bound=Section)


class Policy(Section):
    """One training."""

    title: str
    """Description next to the policy's name in tables."""
    agent: str
    """Isaac Lab: key of the agent's config in the task's registration; mjlab: end of its id;
    EnvPool: its name."""
    iterations: PositiveInt
    """Number of rollouts and updates."""
    seed: NonNegativeInt
    """Seed of environment and agent."""
    num_envs: PositiveInt | None = None
    """Environments in training. None means the experiment's number."""
    starts_from: str | None = None
    """Earlier policy whose checkpoint the training loads: a teacher, or a student to continue with.

    None trains the policy from scratch.
    """
    run: str | None = None
    """Log folder of a policy that was trained before, relative to the repository.

    It is copied, and nothing is trained; iterations and environments are those of its training.
    """
    task_overrides: list[str] = []
    """Settings of the task, also for evaluation: ``env.observations.policy.history_length=10``."""
    overrides: list[str] = []
    """Extra arguments of the platform's command, such as ``env.compute_final_obs=true``.

    ``{checkpoint}``, as in ``agent.algorithm.teacher_checkpoint={checkpoint}``, is replaced by the
    checkpoint of ``starts_from``, which the command then gets nowhere else.
    """
    trust: list[str] = []
    """Packages of its own classes, which its evaluation may import."""


class Ablation(Section):
    """One more evaluation of a policy, with one of its inputs removed."""

    title: str
    """Description next to the ablation's name in tables."""
    policy: str
    """Name of the policy."""
    override: str
    """A setting of the task that removes the input: ``env.observations.camera.depth.scale=0``."""


class Evaluation(Section):
    """How each policy is evaluated."""

    episodes: int = Field(ge=2)
    """Number of fresh episodes, one per environment; an interval needs at least 2."""
    max_steps: PositiveInt | None = None
    """Steps after which an episode is counted as it is. None means the whole episode."""
    seed: NonNegativeInt
    """Seed of the environment, the same for all policies."""


class Export(Section):
    """How the exported policy is compared with the trained one."""

    policy: str
    """Name of the policy."""
    steps: PositiveInt
    """Steps of the golden trajectory, with a reset in the middle."""
    tolerance: PositiveFloat
    """Largest difference of an action that passes."""
    seed: NonNegativeInt
    """Seed of the trajectory."""


class AcceptanceCheck(Section):
    """A condition on a policy's evaluation: exactly one of the four rules."""

    policy: str
    """Name of the policy."""
    min_share_of_teacher: PositiveFloat | None = None
    """The policy's mean return is at least this share of the teacher's."""
    max_share_of_teacher: PositiveFloat | None = None
    """The policy's mean return is at most this share of the teacher's."""
    clearly_below: str | None = None
    """The policy's mean return is below this policy's, and their intervals do not overlap."""
    not_below: str | None = None
    """The policy is not clearly below this policy."""

    @model_validator(mode="after")
    def _one_of_four(self) -> "AcceptanceCheck":
        rules = self.model_dump(exclude={"policy"})
        if sum(rule is not None for rule in rules.values()) != 1:
            raise ValueError(f"expected exactly one of {', '.join(rules)}")
        return self


class Experiment(Section):
    """Everything that decides a run's result, apart from the device."""

    heading: str
    """Headline of the report."""
    summary: str
    """Text of the report below the headline."""
    task: str
    """Registered task id; in mjlab without the agent's name at its end."""
    num_envs: PositiveInt
    """Environments in training."""
    policies: dict[str, Policy] = Field(min_length=1)
    """The policies by name, in training order. The first is the teacher."""
    ablations: dict[str, Ablation] = {}
    """Extra rows of the tables, by name."""
    evaluation: Evaluation
    export: Export
    acceptance: list[AcceptanceCheck]
    platform: Literal["isaaclab", "mjlab", "envpool"] = "isaaclab"
    """Simulator of the task."""

    @property
    def teacher(self) -> str:
        """Name of the policy whose return the others are measured in."""
        return next(iter(self.policies))

    @property
    def evaluated(self) -> dict[str, Policy | Ablation]:
        """Everything that is evaluated, by name."""
        return {**self.policies, **self.ablations}

    @model_validator(mode="after")
    def _names_exist(self) -> "Experiment":
        names = [*self.policies]
        named = [("export.policy", self.export.policy, names)]
        named += [
            (f"policies.{name}.starts_from", policy.starts_from, names[:number])
            for number, (name, policy) in enumerate(self.policies.items())
        ]
        named += [
            (f"ablations.{name}.policy", ablation.policy, names)
            for name, ablation in self.ablations.items()
        ]
        named += [
            (f"acceptance.{number}.{key}", getattr(check, key), [*self.evaluated])
            for number, check in enumerate(self.acceptance)
            for key in ("policy", "clearly_below", "not_below")
        ]
        for place, name, known in named:
            if name is not None and name not in known:
                raise ValueError(f"{place} is {name!r}, expected one of the policies {known}.")
        return self


def load_experiment(path: Path) -> Experiment:
    """Read and check an experiment, as :func:`read_section` does."""
    return read_section(Experiment, path)


def read_section(kind: type[AnySection], path: Path) -> AnySection:
    """Read a YAML file.

    Args:
        kind: Class with the file's fields.
        path: The file.

    Returns:
        The file's values.

    Raises:
        ValueError: If the file cannot be read, a key is missing or unknown, or a value has a wrong
            type or range. The message names each of them.
    """
    try:
        return kind.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise ValueError(f"The experiment {path} cannot be read: {error}") from error
