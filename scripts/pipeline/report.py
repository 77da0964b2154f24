"""Report an experiment's result: table, acceptance checks, curves, results.json, report.md."""

import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from rsl_tbptt.files import write_json
from rsl_tbptt.installation import machine, versions
from rsl_tbptt.tools.platforms import load_platform
from scripts.pipeline.events import read_curves
from scripts.pipeline.experiments import AcceptanceCheck, Experiment
from scripts.pipeline.figure import save_returns
from scripts.pipeline.run import Record, clock
from scripts.pipeline.stages import read_evaluation

COLUMNS = ("mean_return", "confidence_interval", "episodes", "mean_length", "step_seconds")
"""Values of an evaluation that the tables show."""
CURVE = "Train/mean_reward"
"""Tag of the curve that is drawn."""


def write_report(
    folder: Path, experiment: Experiment, records: dict[str, Record], device: str
) -> dict[str, Any]:
    """Write results.json, report.md and its curves.svg into a run folder.

    Args:
        folder: Run folder.
        experiment: Its experiment.
        records: Records of its stages, all finished.
        device: The device that the run used.

    Returns:
        The content of results.json.
    """
    records = dict(sorted(records.items(), key=lambda item: item[1].finished_at))
    results = collect(folder, experiment) | {
        "stages": {
            name: {"seconds": record.seconds, "peak_memory_gb": record.peak_memory_gb}
            for name, record in records.items()
        },
        "versions": versions(load_platform(experiment.platform).PACKAGES),
        "machine": machine(device),
    }
    write_json(folder / "results.json", results)
    curves = {
        policy.title: read_curves((folder / records[name].output).parent)[CURVE]
        for name, policy in experiment.policies.items()
        if policy.run is None  # trained here
    }
    save_returns(curves, folder / "curves.svg")
    (folder / "report.md").write_text(format_page(experiment, results, records), encoding="utf-8")
    return results


def collect(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Collect the evaluations of a run folder.

    Args:
        folder: Run folder with all evaluations.
        experiment: The run's experiment.

    Returns:
        JSON values: ``policies`` (title, mean, interval, share of the teacher, episodes, mean
        length), ``acceptance`` (whether each check passed, and a text), and the export's
        differences.
    """
    evaluations = {name: read_evaluation(folder, name) for name in experiment.evaluated}
    teacher_mean = evaluations[experiment.teacher]["mean_return"]
    policies = {}
    for name, evaluation in evaluations.items():
        # A share of a return that is not positive has no meaning.
        share = evaluation["mean_return"] / teacher_mean if teacher_mean > 0 else None
        row = {key: evaluation[key] for key in COLUMNS} | {"share_of_teacher": share}
        policies[name] = {"title": experiment.evaluated[name].title} | row
    exported = json.loads((folder / "exported" / "policy.json").read_text(encoding="utf-8"))
    return {
        "task": experiment.task,
        "policies": policies,
        "acceptance": [judge(check, policies) for check in experiment.acceptance],
        "exported": {key: exported[key] for key in ("max_difference", "golden")},
    }


def judge(check: AcceptanceCheck, policies: dict[str, Any]) -> dict[str, Any]:
    """Check whether a policy meets a condition of the experiment.

    Args:
        check: The condition.
        policies: The table's rows by policy.

    Returns:
        JSON values: ``passed`` and ``text``.
    """
    name, row = check.policy, policies[check.policy]
    least, most = check.min_share_of_teacher, check.max_share_of_teacher
    if goal := least or most:
        share, rule = row["share_of_teacher"], "goal:" if least else "at most"
        passed = share is not None and (share >= goal if least else share <= goal)
        text = f"{name} reaches {format_share(share)} of the teacher's return ({rule} {goal:.0%})."
        return {"passed": passed, "text": text}
    other = check.clearly_below or check.not_below
    assert other is not None  # AcceptanceCheck has exactly one of the four rules
    below = row["confidence_interval"][1] < policies[other]["confidence_interval"][0]
    if check.clearly_below:
        found = "do not overlap" if below else "overlap, or it is not below"
        return {"passed": below, "text": f"{name} below {other}: their intervals {found}."}
    found = "below it, and their intervals do not overlap" if below else "not clearly below it"
    return {"passed": not below, "text": f"{name} against {other}: {found}."}


def format_table(results: dict[str, Any], form: str = "plain") -> str:
    """Write the table; for a terminal its lines have at most 100 characters.

    Args:
        results: Result of :func:`collect`.
        form: A format of tabulate.
    """
    headings = ("policy", "", "mean return", "95 % confidence", "of teacher", "episodes")
    rows = []
    for name, row in results["policies"].items():
        low, high = row["confidence_interval"]
        mean, interval = f"{row['mean_return']:.3f}", f"{low:.3f} to {high:.3f}"
        share = format_share(row["share_of_teacher"])
        rows.append((name, row["title"], mean, interval, share, row["episodes"]))
    sides = ("left", "left", "right", "right", "right", "right")
    return tabulate(rows, headings, form, colalign=sides, disable_numparse=True)


def format_share(share: float | None) -> str:
    """Format a share of the teacher's return."""
    return "n/a" if share is None else f"{share:.1%}"


def format_page(experiment: Experiment, results: dict[str, Any], records: dict[str, Record]) -> str:
    """Write a run's page in Markdown; see :func:`write_report` for the arguments."""
    checks = [f"- {'yes' if c['passed'] else 'NO'}: {c['text']}" for c in results["acceptance"]]
    stages = [
        f"- {name}: {clock(record.seconds)} min, peak memory {record.peak_memory_gb:.2f} GB\n\n"
        f"      {record.command}\n"
        for name, record in records.items()
    ]
    exported = results["exported"]
    differences = ", ".join(f"{n} {d:.1e}" for n, d in exported["max_difference"].items())
    packages = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    parts = [
        f"# {experiment.heading}",
        f"{results['task']}. {experiment.summary}",
        format_table(results, "pipe"),
        "\n".join(checks),
        "![Return in training over iterations](curves.svg)",
        f"Exported: [{experiment.export.policy}](exported/README.md), {exported['golden']}; largest"
        f" differences: {differences}.",
        "## Stages",
        "\n".join(stages),
        f"{', '.join(results['machine'].values())}. {packages}.",
    ]
    return "\n\n".join(parts) + "\n"
