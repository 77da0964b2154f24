"""A run's result: what its stages left, as one table with verdicts."""

import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from rsl_tbptt.intervals import intervals_overlap
from scripts.pipeline.presets import Preset, Verdict


def collect(folder: Path, preset: Preset) -> dict[str, Any]:
    """Gather the evaluations of a run folder.

    Args:
        folder: Run folder with all evaluations.
        preset: The run's preset.

    Returns:
        JSON values: ``policies`` (title, mean, interval, share of the teacher, episodes, mean
        length), ``verdicts`` (whether each holds, and in words), and the export's parity.
    """
    evaluations = {name: read_evaluation(folder, name) for name in preset.evaluated}
    teacher_mean = evaluations[preset.teacher]["mean_return"]
    policies = {
        name: {"title": preset.evaluated[name].title} | _row(evaluation, teacher_mean)
        for name, evaluation in evaluations.items()
    }
    parity = json.loads((folder / "exported" / "parity.json").read_text(encoding="utf-8"))
    return {
        "task": preset.task,
        "policies": policies,
        "verdicts": [judge(verdict, policies) for verdict in preset.verdicts],
        "export_max_difference": parity["max_difference"],
    }


def read_evaluation(folder: Path, name: str) -> dict[str, Any]:
    """Read what ``rsl-tbptt evaluate`` wrote about a policy."""
    return json.loads((folder / "evaluation" / f"{name}.json").read_text(encoding="utf-8"))


def _row(evaluation: dict[str, Any], teacher_mean: float) -> dict[str, Any]:
    """Pick a table row; a share of a return that is not positive says nothing."""
    kept = ("mean_return", "confidence_interval", "episodes", "mean_length", "step_seconds")
    share = evaluation["mean_return"] / teacher_mean if teacher_mean > 0 else None
    return {key: evaluation[key] for key in kept} | {"share_of_teacher": share}


def judge(verdict: Verdict, policies: dict[str, Any]) -> dict[str, Any]:
    """Hold a policy against what the preset asks of it.

    Args:
        verdict: What is asked.
        policies: The table's rows by policy.

    Returns:
        JSON values: ``passed`` and ``text``.
    """
    name, row = verdict.policy, policies[verdict.policy]
    least, most = verdict.min_share_of_teacher, verdict.max_share_of_teacher
    if goal := least or most:
        share, rule = row["share_of_teacher"], "goal:" if least else "at most"
        passed = share is not None and (share >= goal if least else share <= goal)
        text = f"{name} reaches {format_share(share)} of the teacher's return ({rule} {goal:.0%})."
        return {"passed": passed, "text": text}
    other = verdict.clearly_below or verdict.not_below
    assert other is not None  # load_preset let exactly one of the four through
    below = clearly_below(row, policies[other])
    if verdict.clearly_below:
        found = "do not overlap" if below else "overlap, or it is not below"
        return {"passed": below, "text": f"{name} below {other}: their intervals {found}."}
    found = "below it, and their intervals do not overlap" if below else "not clearly below it"
    return {"passed": not below, "text": f"{name} against {other}: {found}."}


def clearly_below(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether a mean return is below another and their intervals do not overlap."""
    overlap = intervals_overlap(row["confidence_interval"], other["confidence_interval"])
    return row["mean_return"] < other["mean_return"] and not overlap


def format_table(results: dict[str, Any]) -> str:
    """Write the table for a terminal.

    Args:
        results: What :func:`collect` returned.

    Returns:
        Lines of at most 100 characters.
    """
    headings = ("policy", "", "mean return", "95 % confidence", "of teacher", "episodes")
    rows = []
    for name, row in results["policies"].items():
        low, high = row["confidence_interval"]
        mean, interval = f"{row['mean_return']:.3f}", f"{low:.3f} to {high:.3f}"
        share = format_share(row["share_of_teacher"])
        rows.append((name, row["title"], mean, interval, share, row["episodes"]))
    sides = ("left", "left", "right", "right", "right", "right")
    return tabulate(rows, headings, "plain", colalign=sides, disable_numparse=True)


def format_share(share: float | None) -> str:
    """Write a share of the teacher's return."""
    return "n/a" if share is None else f"{share:.1%}"
