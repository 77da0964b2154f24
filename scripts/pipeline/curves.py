"""Train policies with several seeds, evaluate them, and compare how they learned.

Writes report.md, with tables and the learning curves, and jitter.svg, return over jitter, into the
run folder, or into that of each task, and a figure of all tasks. A finished stage is not run again
while its command is the same, and a training that was interrupted goes on from its newest
checkpoint. With --minutes the script stops after that time, reports what is finished, and returns
75 if something is left.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rsl_tbptt.installation import machine, versions
from rsl_tbptt.tools.platforms import load_platform
from scripts.pipeline.experiments import Experiment
from scripts.pipeline.run import cost, run_script, run_stages
from scripts.pipeline.sweep import Sweep, load_sweep, one_task_each, smallest, sweep_stages
from scripts.templates import fill

if TYPE_CHECKING:
    from scripts.pipeline.learning import Learning

TEMPLATE = Path(__file__).with_name("sweep.md.j2")


def main() -> int:
    """Run a sweep; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pipeline.curves", description=__doc__)
    parser.add_argument("--figure", type=Path, help="another place for the figure of one task")
    parser.add_argument("--tasks-figure", type=Path, help="another place for that of all tasks")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time for this run")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to try the commands")
    return run_script(parser, run_sweep)


def run_sweep(args: argparse.Namespace) -> bool:
    """Run a sweep, task by task, for as long as there is time; return whether it is finished."""
    end = time.monotonic() + 60 * args.minutes
    sweep, experiment = load_sweep(args.config)
    if args.quick:
        sweep, experiment = smallest(sweep, experiment)
    learned = {}
    for name, one in one_task_each(sweep, experiment).items():
        minutes = (end - time.monotonic()) / 60
        if minutes <= 0:
            return False
        learned[name], finished = run_task(args, name, sweep, one, minutes)
        if not finished:
            return False
    if len(learned) > 1 and len(sweep.seeds) > 1:  # one seed has no interval
        from scripts.pipeline.figure import save_shares

        save_shares(learned, experiment.teacher, args.tasks_figure or args.output / "tasks.svg")
    return True


def run_task(
    args: argparse.Namespace, name: str, sweep: Sweep, experiment: Experiment, minutes: float
) -> tuple[list[Learning], bool]:
    """Run the stages of one task and report those that are finished; return whether all are."""
    start, folder = time.monotonic(), args.output / name
    stages = sweep_stages(sweep, experiment, args.device)
    records = run_stages(stages, folder, args.device, args.jobs, minutes)
    # Imported here: they take seconds, and --help and the first stage need not wait for them.
    from scripts.pipeline.figure import save_figure, save_jitter
    from scripts.pipeline.learning import compare, format_markdown, read_learnings

    learnings = read_learnings(folder, experiment, sweep, records)
    if not learnings:
        return [], False
    figure = args.figure or folder / "curves.svg"
    save_figure(learnings, experiment.teacher, figure)
    if all("jitter" in learning.evaluation for learning in learnings):
        save_jitter(learnings, experiment.teacher, folder / "jitter.svg")
    tables = format_markdown(compare(learnings, experiment.teacher), experiment.teacher, sweep)
    report = fill(
        TEMPLATE,
        config=args.config.name,
        task=experiment.task,
        finished=f"{len(records)} of {len(stages)} stages are finished",
        figure=os.path.relpath(figure, folder),
        tables=tables,
        cost=cost(records, time.monotonic() - start),
        machine=machine(args.device),
        versions=versions(load_platform(experiment.platform).PACKAGES),
    )
    (folder / "report.md").write_text(report, encoding="utf-8")
    print(f"\n{report}\nreport: {folder / 'report.md'}")
    return learnings, len(records) == len(stages)


if __name__ == "__main__":
    raise SystemExit(main())
