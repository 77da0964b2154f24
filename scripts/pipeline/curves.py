"""Train policies with several seeds, evaluate them, and compare how they learned.

Writes report.md, with tables and the learning curves, into the run folder. Stages that are finished
with the same settings are not run again, so an interrupted run goes on where it was.
"""

import argparse
import os
import time
from pathlib import Path

from rsl_tbptt.machine import machine, versions
from rsl_tbptt.platforms import load_platform
from scripts.pipeline.conductor import Conductor, cost, exit_status, run_parser
from scripts.pipeline.presets import default_run
from scripts.pipeline.run_folder import RunFolder
from scripts.pipeline.study import load_study, study_stages
from scripts.templates import fill

TEMPLATE = Path(__file__).with_name("study.md.j2")


def main() -> int:
    """Run a study.

    Returns:
        The exit status.
    """
    parser = run_parser("python -m scripts.pipeline.curves", __doc__)
    parser.add_argument("--figure", type=Path, help="another place for the figure")
    args = parser.parse_args()
    return exit_status(lambda: run_study(args))


def run_study(args: argparse.Namespace) -> None:
    """Run all stages of a study, print the table and write the figure.

    Args:
        args: The command line.
    """
    start = time.monotonic()
    study, preset = load_study(args.config)
    run = RunFolder(args.output or default_run(args.config))
    stages = study_stages(run, study, preset, args.device)
    markers = Conductor(run, args.device, args.jobs).run_all(stages)
    # Imported here because they take seconds, which --help and the first stage need not wait for.
    from scripts.pipeline.learning import compare, format_markdown, read_learnings
    from scripts.pipeline.learning_figure import save_learning

    learnings = read_learnings(run.path, preset, study, markers)
    figure = args.figure or run.path / "curves.svg"
    save_learning(learnings, preset.teacher, figure)
    tables = format_markdown(compare(learnings, preset.teacher), preset.teacher, study)
    report = fill(
        TEMPLATE,
        config=args.config.name,
        figure=os.path.relpath(figure, run.path),
        tables=tables,
        cost=cost(markers, time.monotonic() - start),
        machine=machine(args.device),
        versions=versions(load_platform(preset.platform).PACKAGES),
    )
    (run.path / "report.md").write_text(report, encoding="utf-8")
    print(f"\n{report}\nreport: {run.path / 'report.md'}")


if __name__ == "__main__":
    raise SystemExit(main())
