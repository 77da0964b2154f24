"""One page about a training, or a comparison of several: ``rsl-tbptt report``.

The page is one file that loads nothing: charts are inline SVG, and a video is embedded if the page
stays small.
"""

import base64
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rsl_tbptt.algorithms.health import LOSSES
from rsl_tbptt.checkpoints.reading import NUMBERED
from rsl_tbptt.files import complete, output_path
from rsl_tbptt.tools.machine import versions
from rsl_tbptt.tools.progress import track
from rsl_tbptt.tools.runs.charts import Chart, curve_chart, return_chart, style
from rsl_tbptt.tools.runs.resume import RunFacts, written
from rsl_tbptt.tools.runs.run_doctor import (
    HELD_OUT_RETURN,
    LOSS,
    TRAINED_RETURN,
    Curves,
    Findings,
    find_wrong,
    is_log_folder,
    judge,
    read_curves,
)
from rsl_tbptt.tools.simulate.memory_findings import memory_facts, memory_rows, read_memory
from rsl_tbptt.tools.simulate.play import STARTED
from rsl_tbptt.tools.templates import fill

TEMPLATE = Path(__file__).with_name("report.html.j2")
MARK = b"<title>rsl_tbptt: "
"""Bytes in every page."""
MOST_BYTES = 2_000_000
"""Limit of a page's size. A video that does not fit is linked."""
KINDS = {".gif": "image/gif", ".webp": "image/webp", ".mp4": "video/mp4"}
"""Media types of videos by file suffix."""
CURVES = {
    TRAINED_RETURN: "Reward per episode",
    HELD_OUT_RETURN: "Reward per episode, held-out environments",
    "Train/mean_episode_length": "Episode length",
}
"""Titles of the curves that are drawn in addition to losses, by tag."""
NUM_COMPARED = 10
"""Logged returns before an evaluated checkpoint that its evaluation is compared with."""
CONDITIONS = {"checkpoint": "{}", "form": "{}", "task": "{}", "seed": "seed {}"}
CONDITIONS |= {"episodes": "{} episodes", "max_steps": "at most {} steps"}
"""What evaluations of a run may differ in, and how a row says it."""


class ReportedRun(RunFacts):
    """A training in a report, with all results in its log folder."""

    def __init__(self, folder: Path, name: str) -> None:
        """Read the folder.

        Args:
            folder: The folder.
            name: What the report calls it.

        Raises:
            ValueError: If the folder is not a log folder, or has a result that cannot be read.
        """
        super().__init__(folder)
        self.name, self.curves = name, read_curves(folder)
        evaluated = sorted(folder.glob("evaluation*.json"), key=lambda path: path.stem)
        self.evaluations = {path.stem: read_evaluation(path) for path in evaluated}
        """Results of ``rsl-tbptt evaluate``, by the file's name without ``.json``."""
        compared = compare_evaluations(self.curves, self.evaluations)
        self.findings = find_wrong(self, self.curves) | compared
        self.memory = read_memory(folder)
        """Result of ``rsl-tbptt memory``."""
        videos = [path for kind in KINDS for path in folder.glob(f"*{kind}")]
        videos += folder.glob("videos/**/*.mp4")
        self.video = max(videos, key=lambda path: path.stat().st_mtime, default=None)


@dataclass(kw_only=True)
class Row:
    """An evaluation in the table of a report."""

    name: str
    found: dict[str, Any]
    """Result of ``rsl-tbptt evaluate``."""
    title: str = ""
    number: int = 0
    """Number of its run's style in charts."""
    share: str = ""
    """Share of the teacher's return, as text."""


@dataclass(kw_only=True)
class Report:
    """Content of a page; empty fields are left out."""

    heading: str
    lead: str
    runs: Sequence[ReportedRun]
    rows: Sequence[Row] = ()
    checks: Sequence[dict[str, Any]] = ()
    """Acceptance checks: ``passed`` and ``text``."""
    videos: Sequence[tuple[str, Path]] = ()
    """Caption and file of each."""
    exported: dict[str, Any] = field(default_factory=dict)
    """``policy``, ``folder``, and from its ``policy.json`` ``golden`` and ``max_difference``."""
    stages: Sequence[tuple[str, str, str]] = ()
    """Name, cost and command of each stage that made the files."""
    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str | None]


def report(folders: Sequence[Path], output: Path | None = None) -> Path:
    """Write a page about trainings.

    Args:
        folders: Their log folders, or folders that hold these at any depth.
        output: HTML file; an earlier page is replaced. None means report.html in the log folder, or
            in the working directory if there are several.

    Returns:
        The file.

    Raises:
        ValueError: If a folder is or holds no log folder, is named twice or has an evaluation that
            cannot be read, or if nothing can be written to ``output``.
    """
    logs = [log for folder in folders for log in log_folders(folder)]
    default = Path("report.html") if len(logs) > 1 else logs[0] / "report.html"
    if len({log.resolve() for log in logs}) < len(logs):
        raise ValueError(f"RUN is {[*map(str, folders)]}, expected each once: leave one out.")
    named = [*zip(logs, _names(logs), strict=True)]
    runs = [ReportedRun(log, name) for log, name in track(named, "trainings")]
    output = output_path(output or default, default, MARK)
    write_page(describe(runs), output)
    return output


def log_folders(folder: Path) -> list[Path]:
    """Return a folder if it is a training's, else those of trainings inside it, in order of names.

    A folder without any is returned, too: reading it says what is missing.
    """
    if is_log_folder(folder):
        return [folder]
    inside = sorted(path for path in folder.rglob("*") if is_log_folder(path))
    return inside or [folder]


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read a result of ``rsl-tbptt evaluate``.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if len(found["returns"]) != found["episodes"] or len(found["confidence_interval"]) != 2:
            raise ValueError("its episodes are incomplete")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"The evaluation '{path}' cannot be read ({error!r}), expected what `rsl-tbptt"
            " evaluate` wrote: evaluate again, or move the file away."
        ) from error
    return found


def compare_evaluations(
    curves: Curves, evaluations: Mapping[str, Mapping[str, Any]]
) -> dict[str, Findings]:
    """Compare evaluations of numbered checkpoints with the returns that were logged before them.

    Args:
        curves: The training's.
        evaluations: Results of ``rsl-tbptt evaluate``, by name.

    Returns:
        Findings by ``evaluation``; none without a curve or an evaluation of a numbered checkpoint.
        It is wrong if all of these returns are above the evaluation's interval. Below it they may
        be: rollouts have action noise, and a student's average acts better than its newest weights.
    """
    tag = HELD_OUT_RETURN if HELD_OUT_RETURN in curves else TRAINED_RETURN
    logged_at = [*zip(*curves.get(tag, ((), ())), strict=True)]
    compared, wrong = [], []
    for name, found in sorted(evaluations.items()):
        if not (numbered := NUMBERED.fullmatch(str(found.get("checkpoint")))):
            continue
        if not (before := [value for it, value in logged_at if it <= int(numbered[1])]):
            continue
        compared.append(name)
        logged, (low, high) = before[-NUM_COMPARED:], found["confidence_interval"]
        if min(logged) > high:
            wrong.append(
                f"{tag} is {median(logged):.4g} at {found['checkpoint']}, but {name}.json has"
                f" {low:.4g} to {high:.4g}: trust the evaluation, a log is none."
            )
    return {"evaluation": (f"{', '.join(compared)}: {tag}", wrong)} if compared else {}


def describe(runs: Sequence[ReportedRun]) -> Report:
    """Return the report of trainings from their folders."""
    rows = [
        Row(name=name, found=found, number=number)
        for number, run in enumerate(runs)
        for name, found in named_evaluations(run)
    ]
    tasks = dict.fromkeys(run.trained.task for run in runs if run.trained)
    return Report(
        heading=runs[0].name if len(runs) == 1 else f"{len(runs)} trainings compared",
        lead=", ".join(tasks) or "Task not noted",
        runs=runs,
        rows=rows,
        videos=[(run.name, run.video) for run in runs if run.video is not None],
        versions=versions(
            tuple({package: None for run in runs for package in run.platform.PACKAGES})
        ),
    )


def named_evaluations(run: ReportedRun) -> list[tuple[str, dict[str, Any]]]:
    """Return a run's evaluations, each named by what differs between them, or else by its file."""
    found = [*run.evaluations.values()]
    differing = [key for key in CONDITIONS if len({str(each.get(key)) for each in found}) > 1]
    names = [
        ", ".join([run.name, *(CONDITIONS[key].format(each.get(key)) for key in differing)])
        for each in found
    ]
    if len({*names}) < len(names):
        names = [f"{name}, {stem}.json" for name, stem in zip(names, run.evaluations, strict=True)]
    return [*zip(names, found, strict=True)]


def write_page(page: Report, output: Path) -> None:
    """Write a report as one HTML file of at most :data:`MOST_BYTES`, if its text is not longer."""
    videos: dict[Path, str | None] = {path: None for _, path in page.videos}
    html = _render(page, output, videos)
    for path in videos:
        if len(html.encode()) + 4 * path.stat().st_size / 3 < MOST_BYTES - 1000:
            content = base64.b64encode(path.read_bytes()).decode()
            videos[path] = f"data:{KINDS[path.suffix.lower()]};base64,{content}"
            html = _render(page, output, videos)
    with complete(output) as unfinished:
        unfinished.write_text(html, encoding="utf-8")


def _render(page: Report, output: Path, videos: dict[Path, str | None]) -> str:
    tags = {tag: None for run in page.runs for tag in run.curves}
    titles = {tag: title for tag, title in CURVES.items() if tag in tags}
    titles |= {tag: f"Loss: {tag.removeprefix(LOSS)}" for tag in tags if _is_loss(tag)}
    charts = [
        curve_chart(
            title,
            {n: run.curves[tag] for n, run in enumerate(page.runs) if tag in run.curves},
            log=tag not in CURVES,
        )
        for tag, title in titles.items()
    ]
    return fill(
        TEMPLATE,
        page=page,
        charts=[chart for chart in charts if chart is not None],
        returns=page.rows
        and return_chart([(row.name, row.number, row.found) for row in page.rows]),
        judge=judge,
        influence=influence_chart,
        memory_rows=memory_rows,
        memory_facts=memory_facts,
        style=style,
        videos=videos,
        relative=lambda path: Path(os.path.relpath(path, output.parent)).as_posix(),
        written=written(time.time()),
    )


def influence_chart(found: Mapping[str, Any], first: int, key: str, what: str) -> Chart | None:
    """Lay out how much later actions move, a line per group.

    Args:
        found: Result of ``rsl-tbptt memory``.
        first: Number of the first group's style.
        key: ``influence`` or ``start_influence``.
        what: What is changed, in words.
    """
    lines = [group[key] for group in found["groups"].values()]
    return curve_chart(
        f"Change of later actions by {what}, in standard deviations",
        {first + number: (range(len(line)), line) for number, line in enumerate(lines)},
        x_label="step",
    )


def _is_loss(tag: str) -> bool:
    first = tag.removeprefix(LOSS).partition("/")[0]
    return tag.startswith(LOSS) and first in {*LOSSES, "value_function"}  # rsl_rl 3's


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest names that tell folders apart, without the time if that suffices."""
    paths = [folder.resolve().parts for folder in folders]
    names = [STARTED.sub("", path[-1]) for path in paths]
    if len({*names}) == len(names):
        return names
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-length:]) for path in paths]
        if len({*names}) == len(names):
            return names
    return [str(folder) for folder in folders]
