"""An experiment's result: table, acceptance checks, results.json and one page, report.html."""

import base64
import io
import json
import math
from itertools import cycle
from pathlib import Path
from typing import Any

from tabulate import tabulate

from rsl_tbptt.files import complete, write_json
from rsl_tbptt.tools.doctor import machine, read_curves, versions
from rsl_tbptt.tools.platforms import load_platform
from scripts.figures import PALETTE, drawn_svg
from scripts.pipeline.experiments import AcceptanceCheck, Experiment
from scripts.pipeline.run import Record, clock
from scripts.templates import fill

TEMPLATE = Path(__file__).with_name("report.html.j2")
COLUMNS = ("mean_return", "confidence_interval", "episodes", "mean_length", "step_seconds")
"""What the tables show of an evaluation."""


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
        What results.json holds.
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
    with complete(folder / "report.html") as unfinished:
        unfinished.write_text(render(folder, experiment, results, records), encoding="utf-8")
    return results


def collect(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Gather the evaluations of a run folder.

    Args:
        folder: Run folder with all evaluations.
        experiment: The run's experiment.

    Returns:
        JSON values: ``policies`` (title, mean, interval, share of the teacher, episodes, mean
        length), ``acceptance`` (whether each holds, and in words), and the export's differences.
    """
    evaluations = {name: read_evaluation(folder, name) for name in experiment.evaluated}
    teacher_mean = evaluations[experiment.teacher]["mean_return"]
    policies = {}
    for name, evaluation in evaluations.items():
        # A share of a return that is not positive says nothing.
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
    """Read what ``rsl-tbptt evaluate`` wrote about a policy."""
    return json.loads((folder / "evaluation" / f"{name}.json").read_text(encoding="utf-8"))


def judge(check: AcceptanceCheck, policies: dict[str, Any]) -> dict[str, Any]:
    """Hold a policy against what the experiment asks of it.

    Args:
        check: What is asked.
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
    assert other is not None  # load_experiment let exactly one of the four through
    below = row["confidence_interval"][1] < policies[other]["confidence_interval"][0]
    if check.clearly_below:
        found = "do not overlap" if below else "overlap, or it is not below"
        return {"passed": below, "text": f"{name} below {other}: their intervals {found}."}
    found = "below it, and their intervals do not overlap" if below else "not clearly below it"
    return {"passed": not below, "text": f"{name} against {other}: {found}."}


def format_table(results: dict[str, Any]) -> str:
    """Write the table for a terminal, in lines of at most 100 characters.

    Args:
        results: What :func:`collect` returned.
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


def render(
    folder: Path, experiment: Experiment, results: dict[str, Any], records: dict[str, Record]
) -> str:
    """Fill the template; the page loads nothing: images are data URIs, style is inline."""
    curves = {
        name: read_curves((folder / records[name].output).parent) for name in experiment.policies
    }
    return fill(
        TEMPLATE,
        results=results,
        video=data_uri("image/webp", (folder / records["video"].output).read_bytes()),
        curves=plot_curves(curves),
        returns=plot_returns(
            {name: read_evaluation(folder, name) for name in experiment.evaluated}
        ),
        records=records,
        total=clock(sum(record.seconds for record in records.values())),
        experiment=experiment,
        format_share=format_share,
        clock=clock,
    )


def plot_curves(curves: dict[str, dict[str, tuple[list[int], list[float]]]]) -> str:
    """Draw the learning curves of each policy as an SVG image, a data URI."""
    image = io.BytesIO()
    with drawn_svg(image, fonttype="path", ncols=2, figsize=(10, 3.4)) as (reward, loss):
        for (name, logged), colour in zip(curves.items(), cycle(PALETTE), strict=False):
            if "Train/mean_reward" in logged:
                reward.plot(*logged["Train/mean_reward"], color=colour, label=name)
            if "Loss/behavior" in logged:
                loss.semilogy(*logged["Loss/behavior"], color=colour, label=name)
        reward.set(title="Reward per episode in training", xlabel="iteration")
        loss.set(title="Behaviour loss of distilled students", xlabel="iteration")
        for axes in (reward, loss):
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False)
    return data_uri("image/svg+xml", image.getvalue())


def plot_returns(evaluations: dict[str, dict[str, Any]]) -> str:
    """Draw every episode's return, with the mean's interval, as an SVG image, a data URI."""
    image, names = io.BytesIO(), [*evaluations]
    with drawn_svg(image, fonttype="path", figsize=(10, 2.2)) as axes:
        for row, colour in zip(range(len(names)), cycle(PALETTE), strict=False):
            found, height = evaluations[names[row]], len(names) - 1 - row
            # Spread vertically in a fixed pattern, so that equal returns remain visible.
            heights = [height + 0.25 * math.sin(37.0 * i) for i in range(found["episodes"])]
            axes.plot(found["returns"], heights, ".", color=colour, alpha=0.35, ms=5, mew=0)
            ends = found["confidence_interval"]
            axes.plot(ends, [height, height], color="black", lw=4, solid_capstyle="butt")
        axes.set_yticks(range(len(names)), names[::-1])
        axes.set(title="Return of each episode; black: 95 % interval of the mean")
        axes.grid(axis="y", visible=False)
    return data_uri("image/svg+xml", image.getvalue())


def data_uri(kind: str, content: bytes) -> str:
    """Write an image into an address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
