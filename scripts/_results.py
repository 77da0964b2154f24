"""The demo's result: what its stages left, as one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _intervals import intervals_overlap
from _preset import POLICIES, Preset

MEANING = {
    "teacher": "PPO, full state",
    "student": "LSTM, noisy positions",
    "memoryless": "MLP, noisy positions",
}


def collect(folder: Path, preset: Preset) -> dict[str, Any]:
    """Gather the evaluations of a run folder.

    Args:
        folder: Run folder with the three evaluations.
        preset: The demo's preset.

    Returns:
        JSON values: ``policies`` (mean, interval, share of the teacher, episodes, mean length), the
        verdicts ``student_reaches_goal`` and ``memoryless_clearly_below``, and the export's parity.
    """
    evaluations = {name: read_evaluation(folder, name) for name in POLICIES}
    teacher_mean = evaluations["teacher"]["mean_return"]
    policies = {name: _row(e, teacher_mean) for name, e in evaluations.items()}
    student, memoryless = policies["student"], policies["memoryless"]
    share = student["share_of_teacher"]
    parity = json.loads((folder / "exported" / "parity.json").read_text(encoding="utf-8"))
    return {
        "task": preset.task,
        "policies": policies,
        "min_share_of_teacher": preset.min_share_of_teacher,
        "student_reaches_goal": share is not None and share >= preset.min_share_of_teacher,
        "memoryless_clearly_below": memoryless["mean_return"] < student["mean_return"]
        and not intervals_overlap(
            memoryless["confidence_interval"], student["confidence_interval"]
        ),
        "export_max_difference": parity["max_difference"],
    }


def read_evaluation(folder: Path, name: str) -> dict[str, Any]:
    """Read what ``evaluate.py`` wrote about a policy."""
    return json.loads((folder / "evaluation" / f"{name}.json").read_text(encoding="utf-8"))


def _row(evaluation: dict[str, Any], teacher_mean: float) -> dict[str, Any]:
    """Pick a table row; a share of a return that is not positive says nothing."""
    kept = ("mean_return", "confidence_interval", "episodes", "mean_length", "step_seconds")
    share = evaluation["mean_return"] / teacher_mean if teacher_mean > 0 else None
    return {key: evaluation[key] for key in kept} | {"share_of_teacher": share}


def format_table(results: dict[str, Any]) -> str:
    """Write the table for a terminal.

    Args:
        results: What :func:`collect` returned.

    Returns:
        Lines of at most 100 characters.
    """
    lines = [
        f"{'policy':<12}{'':<24}{'mean return':>12}{'95 % confidence':>20}{'of teacher':>12}"
        f"{'episodes':>10}"
    ]
    for name, row in results["policies"].items():
        low, high = row["confidence_interval"]
        interval, share = f"{low:.3f} to {high:.3f}", format_share(row["share_of_teacher"])
        lines.append(
            f"{name:<12}{MEANING[name]:<24}{row['mean_return']:>12.3f}{interval:>20}{share:>12}"
            f"{row['episodes']:>10}"
        )
    return "\n".join(lines)


def format_share(share: float | None) -> str:
    """Write a share of the teacher's return."""
    return "n/a" if share is None else f"{share:.1%}"


def verdicts(results: dict[str, Any]) -> list[tuple[bool, str]]:
    """Return what was to be shown: whether it was, and in words."""
    share = format_share(results["policies"]["student"]["share_of_teacher"])
    goal = f"{results['min_share_of_teacher']:.0%}"
    reached, below = results["student_reaches_goal"], results["memoryless_clearly_below"]
    overlap = "do not overlap" if below else "overlap, or it is not below"
    return [
        (reached, f"The student reaches {share} of the teacher's return (goal: {goal})."),
        (below, f"The memoryless student against the student: their intervals {overlap}."),
    ]
