"""Compare how policies learned with every seed with the teacher of their seed, in tables."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from rsl_tbptt.checkpoints.describing import agent_config
from rsl_tbptt.checkpoints.reading import read_checkpoint
from rsl_tbptt.tools.simulate.evaluate import mean_and_interval
from scripts.pipeline.events import read_curves
from scripts.pipeline.experiments import Experiment
from scripts.pipeline.run import Record
from scripts.pipeline.stages import early, log_folders, read_evaluation
from scripts.pipeline.sweep import Sweep, seeded
from scripts.templates import fill

TEMPLATE = Path(__file__).with_name("learning.md.j2")
REACHED = 0.95
"""Share of the teacher's return in training that a policy has to reach once to have converged."""
KEPT = 0.9
"""Share that it has to keep from then on: lower, because returns in training are noisy."""

Curve = dict[int, float]
"""Mean episode return in training, by iterations done."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How one policy learned with one seed."""

    policy: str
    seed: int
    curve: Curve
    iterations: int
    steps_per_iteration: int
    """Environment steps of one iteration in all environments."""
    num_earlier_steps: int
    """Environment steps of the student that it started from; a teacher's do not count."""
    evaluation: dict[str, Any]
    """Its result of ``rsl-tbptt evaluate``."""
    evaluated: Curve = field(default_factory=dict)
    """Mean episode return in evaluations during training, by iterations done."""
    collecting: Curve = field(default_factory=dict)
    """Seconds of each rollout, by iterations done."""
    learning: Curve = field(default_factory=dict)
    """Seconds of each update, by iterations done."""
    num_parameters: int | None = None
    """Of the policy, without its critic."""
    gpu_memory_gb: float | None = None
    """Largest memory in use on the GPU in training."""

    @property
    def evaluated_return(self) -> float:
        """The mean return of the evaluation."""
        return self.evaluation["mean_return"]

    @property
    def final_return(self) -> float:
        """The last mean episode return in training; a copied run has that of the evaluation."""
        return self.curve[max(self.curve)] if self.curve else self.evaluated_return

    @property
    def num_steps(self) -> int:
        """Environment steps, earlier ones included."""
        return self.num_earlier_steps + self.iterations * self.steps_per_iteration


Row = dict[str, Any]
"""A policy with one seed, by :data:`COLUMNS`, :data:`COSTS` and extra headings."""
COLUMNS = {
    "policy": ("policy", "{}"),
    "seed": ("seed", "{}"),
    "evaluated_return": ("return", "{:.3f}"),
    "share": ("of the teacher's", "{:.1%}"),
    "steps": ("steps, of the teacher's", "{:.2f}"),
    "converged": ("converged after", "{:g}"),
    "lowest": (f"lowest after {KEPT:.0%}", "{:.0%}"),
}
"""Heading and format of the columns that the first and the last table show."""
GOALS = (0.9, 0.97)
"""Shares of the teacher's return whose cost is shown."""
COSTS = {
    "policy": ("policy", "{}"),
    "falls": ("falls", "{:.1%}"),
    "velocity_error": ("velocity error, m/s", "{:.3f}"),
    "jitter": ("jitter", "{:.2f}"),
    "parameters": ("parameters", "{:,}"),
    **{f"steps_{goal}": (f"million steps to {goal:.0%}", "{:.2f}") for goal in GOALS},
    **{f"seconds_{goal}": (f"seconds to {goal:.0%}", "{:.0f}") for goal in GOALS},
    "collecting": ("seconds collecting", "{:.0f}"),
    "learning": ("seconds learning", "{:.0f}"),
    "gpu_memory": ("GPU memory, GB", "{:.1f}"),
}
"""Heading and format of the columns of the table of costs."""


def read_learnings(
    folder: Path, experiment: Experiment, sweep: Sweep, records: dict[str, Record]
) -> list[Learning]:
    """Read the results of a sweep's stages.

    Args:
        folder: Run folder.
        experiment: The sweep's experiment, before it was repeated for every seed.
        sweep: Its seeds, and the evaluations during training.
        records: Records of the finished stages.

    Returns:
        All policies of the first seed, then of the next.
    """
    learnings = []
    for seed in sweep.seeds:
        spent: dict[str | None, int] = {}
        for name, policy in experiment.policies.items():
            record = records.get(seeded(name, seed))
            if record is None or f"evaluate-{seeded(name, seed)}" not in records:
                continue
            checkpoint = folder / record.output
            curves = _read_training(folder, seeded(name, seed), record.began_at)
            learning = Learning(
                policy=name,
                seed=seed,
                curve=curves.get("Train/mean_reward", {}),
                collecting=curves.get("Perf/collection_time", {}),
                learning=curves.get("Perf/learning_time", {}),
                iterations=policy.iterations,
                steps_per_iteration=(policy.num_envs or experiment.num_envs)
                * agent_config(checkpoint)["num_steps_per_env"],
                num_earlier_steps=spent.get(policy.starts_from, 0),
                evaluation=read_evaluation(folder, seeded(name, seed)),
                evaluated={
                    after: read_evaluation(folder, early(seeded(name, seed), after))["mean_return"]
                    for after in sorted(sweep.evaluate_after.get(name, ()))
                    if f"evaluate-{early(seeded(name, seed), after)}" in records
                },
                num_parameters=_num_parameters(checkpoint),
                gpu_memory_gb=record.gpu_memory_gb,
            )
            if name != experiment.teacher:
                spent[name] = learning.num_steps
            learnings.append(learning)
    return learnings


def _read_training(folder: Path, name: str, began_at: float) -> dict[str, Curve]:
    """Read a training's curves, by tag; each part of a training repeats its first iteration."""
    found: dict[str, Curve] = defaultdict(dict)
    for number, run in enumerate(log_folders(folder, name, began_at), 1):
        for tag, (iterations, values) in read_curves(run).items():
            found[tag] |= {i + number: value for i, value in zip(iterations, values, strict=True)}
    return found


def _num_parameters(checkpoint: Path) -> int:
    """Return the number of a policy's weights, without its normaliser and noise."""
    loaded = read_checkpoint(str(checkpoint), "cpu")
    state_dict = loaded.get("student_state_dict") or loaded["actor_state_dict"]
    others = ("obs_normalizer", "distribution")
    return sum(value.numel() for n, value in state_dict.items() if not n.startswith(others))


def converged_after(curve: Curve, measure: float) -> int | None:
    """Find when a policy's return in training had converged.

    Args:
        curve: Return by iterations done, in their order.
        measure: The teacher's return.

    Returns:
        The first iteration after which 95 % of it had been reached and no later return is below
        90 %, or None.
    """
    near = (done for done, value in curve.items() if value >= REACHED * measure)
    first, kept = next(near, None), kept_from(curve, measure)
    return None if first is None or kept is None else max(first, kept)


def kept_from(curve: Curve, measure: float) -> int | None:
    """Find from when on a return stayed near the teacher's.

    Args:
        curve: Return by iterations done, in their order.
        measure: The teacher's return; with NaN nothing is near it.

    Returns:
        The first iteration from which on no return is below 90 % of it; None if the last one is.
    """
    below = [done for done, value in curve.items() if not value >= KEPT * measure]
    return next((done for done in curve if done > max(below, default=0)), None)


def lowest_share(curve: Curve, measure: float) -> float | None:
    """Return the lowest share of ``measure`` after 90 % were reached; None if they never were."""
    shares = [value / measure for value in curve.values()]
    first = next((place for place, share in enumerate(shares) if share >= KEPT), None)
    return None if first is None else min(shares[first:])


def compare(learnings: list[Learning], teacher: str) -> list[Row]:
    """Compare every policy with the teacher of its seed.

    Args:
        learnings: Policies of all seeds.
        teacher: Name of the teacher.

    Returns:
        One row per policy and seed, in the same order. The teacher has rows as well.

        - ``share``: Share of the teacher's evaluated return; NaN if that is not positive.
        - ``steps``: Environment steps as a multiple of the teacher's.
        - ``converged``: Iterations after which the return in training had converged, or None.
        - ``lowest``: The lowest share of the teacher's final return in training after it was first
          near that, or None.
        - Extra columns by heading; None if a value was never reached.
    """
    teachers = {learning.seed: learning for learning in learnings if learning.policy == teacher}
    return [_compare(learning, teachers[learning.seed]) for learning in learnings]


def _compare(learning: Learning, teacher: Learning) -> Row:
    # A share of a return that is not positive has no meaning.
    curve = learning.curve if teacher.final_return > 0 else {}
    returned = teacher.evaluated_return if teacher.evaluated_return > 0 else math.nan
    row: Row = {
        "policy": learning.policy,
        "seed": learning.seed,
        "evaluated_return": learning.evaluated_return,
        "share": learning.evaluated_return / returned,
        "steps": learning.num_steps / teacher.num_steps,
        "converged": converged_after(curve, teacher.final_return),
        "lowest": lowest_share(curve, teacher.final_return),
    }
    if learning.evaluated:
        row[f"evaluated at {KEPT:.0%} from"] = kept_from(learning.evaluated, returned)
    return row | _costs(learning, teacher.final_return)


def _costs(learning: Learning, goal: float) -> Row:
    """Return the values of a policy's :data:`COSTS`; None if one is unknown or never reached."""
    evaluation, seconds, spent = learning.evaluation, dict[int, float](), 0.0
    for done, collecting in learning.collecting.items():
        spent += collecting + learning.learning.get(done, 0.0)
        seconds[done] = spent
    timed_out = evaluation.get("timed_out")
    row: Row = {
        "falls": None if timed_out is None else 1 - timed_out,
        "velocity_error": evaluation.get("velocity_error"),
        "jitter": evaluation.get("jitter"),
        "parameters": learning.num_parameters,
        "collecting": sum(learning.collecting.values()) or None,
        "learning": sum(learning.learning.values()) or None,
        "gpu_memory": learning.gpu_memory_gb,
    }
    for share in GOALS:
        near = (done for done, value in learning.curve.items() if value >= share * goal > 0)
        first = next(near, None)
        steps = first and learning.num_earlier_steps + first * learning.steps_per_iteration
        row[f"steps_{share}"] = steps and steps / 1e6
        row[f"seconds_{share}"] = first and seconds.get(first)
    return row


def judge(group: list[Row], sweep: Sweep) -> dict[str, str]:
    """Return how many of a policy's seeds keep each limit of a sweep, by the limit as text."""
    kept_by = {}
    for words, sign, limits in (("least", 1, sweep.at_least), ("most", -1, sweep.at_most)):
        for name, limit in limits.items():
            heading, form = COLUMNS[name]
            values = [row[name] for row in group]
            kept = sum(value is not None and sign * value >= sign * limit for value in values)
            kept_by[f"{heading}: at {words} {form.format(limit)}"] = f"{kept} of {len(group)}"
    return kept_by


def means(group: list[Row], rows: list[Row], sweep: Sweep) -> dict[str, str]:
    """Return a policy's mean share over seeds, and how much more that is than its model's.

    Args:
        group: The policy's rows.
        rows: The rows of all policies.
        sweep: The sweep, which says which policy this one is like.
    """
    shares = [row["share"] for row in group]
    found = {"mean (95 % confidence)": spread(shares, ".1%")}
    variant = sweep.policies.get(group[0]["policy"])
    others = {
        row["seed"]: row["share"] for row in rows if variant and row["policy"] == variant.like
    }
    if others:
        more = [row["share"] - others[row["seed"]] for row in group]
        found["more, seed by seed"] = spread(more, "+.1%")
    return found


def spread(values: Sequence[float | None], form: str) -> str:
    """Return a mean with its 95 % confidence interval as text; "-" if a value is None or alone."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < max(2, len(values)):
        return "-"
    mean, low, high = (format(value, form) for value in mean_and_interval(numbers))
    return f"{mean} ({low} to {high})"


def format_markdown(rows: list[Row], teacher: str, sweep: Sweep) -> str:
    """Write a table of policies with their acceptance checks, and one of every seed.

    Args:
        rows: Result of :func:`compare`.
        teacher: Name of the teacher.
        sweep: The sweep, whose limits are checked.

    Returns:
        Markdown.
    """
    policies = dict.fromkeys(row["policy"] for row in rows)
    groups = [[row for row in rows if row["policy"] == name] for name in policies]
    return fill(
        TEMPLATE,
        policies=_table(
            [_cells(group) | means(group, rows, sweep) | judge(group, sweep) for group in groups]
        ),
        costs=_table([_cells(group, COSTS) for group in groups]),
        goals=" and ".join(f"{goal:.0%}" for goal in GOALS),
        seeds=_table([_cells([row]) for group in groups for row in group]),
        teacher=teacher,
        reached=f"{REACHED:.0%}",
        kept=f"{KEPT:.0%}",
        on_the_way=bool(sweep.evaluate_after),
    )


def _table(rows: list[dict[str, str]]) -> str:
    sides = ["left", *["right"] * (len(rows[0]) - 1)]
    return tabulate(rows, "keys", tablefmt="pipe", colalign=sides, disable_numparse=True)


def _cells(group: list[Row], columns: dict[str, tuple[str, str]] | None = None) -> dict[str, str]:
    """Return the smallest and largest values of a policy's seeds by heading.

    Without ``columns`` these are :data:`COLUMNS` and the extra ones.
    """
    cells = {}
    for name in columns or (name for name in group[0] if name in COLUMNS or name not in COSTS):
        heading, form = (columns or COLUMNS).get(name, (name, "{:.4g}"))
        values = [row[name] for row in group]
        found = sorted(value for value in values if value is not None)
        ends = dict.fromkeys(map(form.format, found[:1] + found[-1:]))
        never = [f"{values.count(None)} never"] if None in values else []
        cells[heading] = ", ".join([*([" to ".join(ends)] if ends else []), *never])
        if columns and not ends:
            cells[heading] = "-"  # unknown, as a GPU's memory on a CPU, or never reached
    return cells
