"""How policies learned with every seed, held against the teacher of their seed."""

from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from rsl_tbptt.checkpoints.agent_configs import agent_config
from scripts.pipeline.figures import read_curves
from scripts.pipeline.presets import Preset
from scripts.pipeline.results import format_share, read_evaluation
from scripts.pipeline.run_folder import Marker
from scripts.pipeline.study import Study, seeded
from scripts.templates import fill

TEMPLATE = Path(__file__).with_name("learning.md.j2")


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How one policy learned with one seed."""

    policy: str
    seed: int
    curve: dict[int, float]
    """Mean episode return in training, by environment steps of this training."""
    num_steps: int
    """Environment steps of this training: environments, steps of a rollout and iterations."""
    num_earlier_steps: int
    """Those of the student that it started from; a teacher's are not counted."""
    evaluated_return: float

    @property
    def final_return(self) -> float:
        """The last mean episode return in training."""
        return self.curve[max(self.curve)]

    def steps_to(self, goal: float) -> int | None:
        """Return when training first reached a return, earlier steps included; None if never."""
        reached = [step for step, value in self.curve.items() if value >= goal]
        return self.num_earlier_steps + min(reached) if reached else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A policy beside the teacher of its seed."""

    learning: Learning
    share: float | None
    """Share of the teacher's evaluated return; None where that is not positive."""
    steps_to_goal: int | None
    """When training first reached the goal: the study's share of the teacher's final return."""
    of_steps_to_goal: float | None
    """These steps as a multiple of the teacher's to the same goal."""
    of_total_steps: float | None
    """These steps as a multiple of the teacher's whole training."""
    passed: bool
    """Whether the evaluated share is reached within the study's multiple of the teacher's steps."""


def read_learnings(
    folder: Path, preset: Preset, seeds: list[int], markers: dict[str, Marker]
) -> list[Learning]:
    """Gather what a study's stages left.

    Args:
        folder: Run folder.
        preset: The study's preset, before it was repeated for every seed.
        seeds: Seeds of training.
        markers: Markers of the finished stages.

    Returns:
        All policies of the first seed, then of the next.
    """
    learnings = []
    for seed in seeds:
        spent: dict[str | None, int] = {}
        for name, policy in preset.policies.items():
            checkpoint = folder / markers[seeded(name, seed)].output
            per_iteration = preset.num_envs * agent_config(checkpoint)["num_steps_per_env"]
            iterations, returns = read_curves(checkpoint.parent)["Train/mean_reward"]
            learning = Learning(
                policy=name,
                seed=seed,
                curve={
                    (iteration + 1) * per_iteration: value
                    for iteration, value in zip(iterations, returns, strict=True)
                },
                num_steps=per_iteration * policy.iterations,
                num_earlier_steps=spent.get(policy.starts_from, 0),
                evaluated_return=read_evaluation(folder, seeded(name, seed))["mean_return"],
            )
            if name != preset.teacher:
                spent[name] = learning.num_earlier_steps + learning.num_steps
            learnings.append(learning)
    return learnings


def compare(learnings: list[Learning], teacher: str, study: Study) -> list[Comparison]:
    """Hold every policy against the teacher of its seed.

    Args:
        learnings: Policies of all seeds.
        teacher: Name of the teacher.
        study: What is judged.

    Returns:
        One comparison per policy and seed, in the same order, the teacher's with itself included.
    """
    teachers = {learning.seed: learning for learning in learnings if learning.policy == teacher}
    return [_compare(learning, teachers[learning.seed], study) for learning in learnings]


def _compare(learning: Learning, teacher: Learning, study: Study) -> Comparison:
    goal = study.min_share_of_teacher * teacher.final_return
    steps, teachers_steps = learning.steps_to(goal), teacher.steps_to(goal)
    returned = teacher.evaluated_return
    share = learning.evaluated_return / returned if returned > 0 else None
    spent = learning.num_earlier_steps + learning.num_steps
    return Comparison(
        learning=learning,
        share=share,
        steps_to_goal=steps,
        of_steps_to_goal=steps / teachers_steps if steps and teachers_steps else None,
        of_total_steps=steps / teacher.num_steps if steps else None,
        passed=share is not None
        and share >= study.min_share_of_teacher
        and spent <= study.max_step_ratio * teacher.num_steps,
    )


def format_markdown(comparisons: list[Comparison], teacher: str, study: Study) -> str:
    """Write the table, one row per policy and seed, and what it says.

    Args:
        comparisons: What :func:`compare` returned.
        teacher: Name of the teacher.
        study: What is judged.

    Returns:
        Markdown.
    """
    policies = dict.fromkeys(comparison.learning.policy for comparison in comparisons)
    groups = {name: [c for c in comparisons if c.learning.policy == name] for name in policies}
    rows = [_cells(comparison) for group in groups.values() for comparison in group]
    sides = ["left", *["right"] * (len(rows[0]) - 1)]
    table = tabulate(rows, "keys", tablefmt="pipe", colalign=sides, disable_numparse=True)
    return fill(TEMPLATE, table=table, groups=groups, teacher=teacher, study=study)


def _cells(comparison: Comparison) -> dict[str, object]:
    """Return a row of the table by its columns."""
    learning, goal = comparison.learning, comparison.steps_to_goal
    return {
        "policy": learning.policy,
        "seed": learning.seed,
        "return": f"{learning.evaluated_return:.3f}",
        "of the teacher": format_share(comparison.share),
        "environment steps": f"{learning.num_steps:,}",
        "before, as a student": f"{learning.num_earlier_steps:,}",
        "steps to the goal": "never" if goal is None else f"{goal:,}",
        "/ teacher's to it": _times(comparison.of_steps_to_goal),
        "/ teacher's total": _times(comparison.of_total_steps),
        "within": "yes" if comparison.passed else "no",
    }


def _times(ratio: float | None) -> str:
    return "n/a" if ratio is None else f"{ratio:.2f}"
