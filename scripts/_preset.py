"""A preset: what a file such as ``configs/demo.yaml`` may contain."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from _platform import PLATFORMS
from _schema import build, mapping, read_mapping

REPOSITORY = Path(__file__).resolve().parent.parent
DEMO = REPOSITORY / "configs" / "demo.yaml"
FINETUNE = REPOSITORY / "configs" / "finetune.yaml"


def default_run(config: Path) -> Path:
    """Return the run folder of a preset where none is named."""
    return Path("runs") / config.stem


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One training."""

    title: str
    """What the tables say beside the policy's name."""
    agent: str
    """Isaac Lab: key of the agent's config in the task's registration; mjlab: end of its id."""
    iterations: int
    """Rollouts and updates."""
    seed: int
    """Seed of environment and agent."""
    expected_seconds: float
    """Duration on 2 CPU cores, for the first guess of the remaining time."""
    starts_from: str | None = None
    """Earlier policy whose checkpoint the training is given: a teacher, or a student to go on with.

    Without it the policy is trained from scratch.
    """
    overrides: list[str] = field(default_factory=list)
    """Further arguments of the platform's command, such as ``env.compute_final_obs=true``."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How each policy is evaluated."""

    episodes: int
    """Fresh episodes, one per environment."""
    seed: int
    """Seed of the environment, the same for all policies."""
    recorded_envs: int
    """Environments whose joint positions are kept for the animation."""
    expected_seconds: float
    """Duration on 2 CPU cores, for the first guess of the remaining time."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """How the exported policy is compared with the trained one."""

    policy: str
    """Name of the policy."""
    parity_steps: int
    """Steps compared, with a reset in the middle."""
    tolerance: float
    """Largest difference of an action that passes."""
    seed: int
    """Seed of the observations compared on."""
    expected_seconds: float
    """Duration on 2 CPU cores, for the first guess of the remaining time."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a policy's evaluation is held against: exactly one of the three."""

    policy: str
    """Name of the policy."""
    min_share_of_teacher: float | None = None
    """The policy's mean return is at least this share of the teacher's."""
    clearly_below: str | None = None
    """The policy's mean return is below this policy's, and their intervals do not overlap."""
    not_below: str | None = None
    """The policy is not clearly below this policy."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Everything that decides a run's result, apart from the device."""

    heading: str
    """Headline of the report."""
    summary: str
    """What the report says below it."""
    task: str
    """Registered task id; in mjlab without the agent's name at its end."""
    num_envs: int
    """Environments in training."""
    policies: dict[str, Policy]
    """The policies by name, in training order. The first is the teacher."""
    evaluation: Evaluation
    export: Export
    verdicts: list[Verdict]
    platform: str = "isaaclab"
    """What simulates the task: ``"isaaclab"`` or ``"mjlab"``."""

    @property
    def teacher(self) -> str:
        """Name of the policy whose return the others are measured in."""
        return next(iter(self.policies))


def load_preset(path: Path) -> Preset:
    """Read and check a preset.

    Args:
        path: YAML file.

    Returns:
        The preset.

    Raises:
        ValueError: If a key is missing or unknown, a value has the wrong type or sign, or a name is
            no policy's or platform's.
    """
    where = path.name
    values = read_mapping(path)
    policies = mapping(values.get("policies"), f"{where}: policies")
    verdicts = values.get("verdicts")
    if not isinstance(verdicts, list):
        raise ValueError(f"{where}: verdicts is {verdicts!r}, expected a list.")
    parts = {
        "policies": {
            name: build(Policy, section, f"{where}: policies: {name}")
            for name, section in policies.items()
        },
        "evaluation": build(Evaluation, values.get("evaluation"), f"{where}: evaluation"),
        "export": build(Export, values.get("export"), f"{where}: export"),
        "verdicts": [
            build(Verdict, section, f"{where}: verdicts: {number}")
            for number, section in enumerate(verdicts, start=1)
        ],
    }
    preset = build(Preset, {**values, **parts}, where)
    _check_names(preset, where)
    return preset


def _check_names(preset: Preset, where: str) -> None:
    """Check that names are those of a platform and of policies, and that verdicts say one thing.

    Raises:
        ValueError: If not.
    """
    if preset.platform not in PLATFORMS:
        raise ValueError(
            f"{where}: platform is {preset.platform!r}, expected one of {list(PLATFORMS)}."
        )
    earlier: list[str] = []
    for name, policy in preset.policies.items():
        if policy.starts_from is not None:
            _check_name(policy.starts_from, earlier, f"{where}: policies: {name}: starts_from")
        earlier.append(name)
    _check_name(preset.export.policy, earlier, f"{where}: export: policy")
    for number, verdict in enumerate(preset.verdicts, start=1):
        section = f"{where}: verdicts: {number}"
        _check_name(verdict.policy, earlier, f"{section}: policy")
        others = {"clearly_below": verdict.clearly_below, "not_below": verdict.not_below}
        given = {key: other for key, other in others.items() if other is not None}
        for key, other in given.items():
            _check_name(other, earlier, f"{section}: {key}")
        if len(given) + (verdict.min_share_of_teacher is not None) != 1:
            raise ValueError(
                f"{section} is {verdict}, expected exactly one of min_share_of_teacher,"
                " clearly_below and not_below."
            )


def _check_name(name: str, policies: list[str], where: str) -> None:
    """Check a policy's name.

    Raises:
        ValueError: If it is not among the policies.
    """
    if name not in policies:
        raise ValueError(f"{where} is {name!r}, expected one of the policies before: {policies}.")
