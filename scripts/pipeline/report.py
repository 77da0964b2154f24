"""Report an experiment's result: table, acceptance checks, results.json, and report.html."""

import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from rsl_tbptt.files import write_json
from rsl_tbptt.tools.machine import machine, versions
from rsl_tbptt.tools.platforms import load_platform
from rsl_tbptt.tools.progress import clock
from rsl_tbptt.tools.runs.report import Report, ReportedRun, Row, write_page
from scripts.pipeline.experiments import AcceptanceCheck, Experiment
from scripts.pipeline.run import Record

COLUMNS = ("mean_return", "confidence_interval", "episodes", "mean_length", "step_seconds")
"""Values of an evaluation that the tables show."""
VIDEO = (
    "{}, in columns. One row per robot: equal physics and start in all columns, in real time. Grey:"
    " the episode has ended. The simulator's own images, of robots that were not chosen."
)


def write_report(
    folder: Path, experiment: Experiment, records: dict[str, Record], device: str
) -> dict[str, Any]:
    """Write results.json and report.html into a run folder.

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
    write_page(describe(folder, experiment, results, records), folder / "report.html")
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


def read_evaluation(folder: Path, name: str) -> dict[str, Any]:
    """Read a policy's result of ``rsl-tbptt evaluate``."""
    return json.loads((folder / "evaluation" / f"{name}.json").read_text(encoding="utf-8"))


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


def format_table(results: dict[str, Any]) -> str:
    """Write the table for a terminal, in lines of at most 100 characters.

    Args:
        results: Result of :func:`collect`.
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
    """Format a share of the teacher's return."""
    return "n/a" if share is None else f"{share:.1%}"


def describe(
    folder: Path, experiment: Experiment, results: dict[str, Any], records: dict[str, Record]
) -> Report:
    """Describe a run's page; see :func:`write_report` for the arguments and the results."""
    trained = {name: (folder / records[name].output).parent for name in experiment.policies}
    rows = [
        Row(
            name=name,
            title=row["title"],
            found=read_evaluation(folder, name),
            number=number,
            share=format_share(row["share_of_teacher"]),
        )
        for number, (name, row) in enumerate(results["policies"].items())
    ]
    exported = {"policy": experiment.export.policy, "folder": folder / "exported"}
    return Report(
        heading=experiment.heading,
        lead=f"{results['task']}. {experiment.summary}",
        runs=[ReportedRun(path, name) for name, path in trained.items()],
        rows=rows,
        checks=results["acceptance"],
        videos=[(VIDEO.format(", ".join(experiment.policies)), folder / records["video"].output)],
        exported=exported | results["exported"],
        stages=[
            (name, f"{clock(r.seconds)} min, peak memory {r.peak_memory_gb:.2f} GB", r.command)
            for name, r in records.items()
        ],
        machine=results["machine"],
        versions=results["versions"],
    )
