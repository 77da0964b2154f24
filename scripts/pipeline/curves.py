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
from scripts.pipeline.presets import default_run
from scripts.pipeline.run import cost, exit_status, run_parser, run_stages
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
    folder = (args.output or default_run(args.config)).resolve()
    stages = study_stages(study, preset, folder, args.device)
    records = run_stages(stages, folder, args.device, args.jobs)
    # Imported here because they take seconds, which --help and the first stage need not wait for.
    from scripts.pipeline.learning import compare, format_markdown, read_learnings, save_figure

    learnings = read_learnings(folder, preset, study, records)
    figure = args.figure or folder / "curves.svg"
    save_figure(learnings, preset.teacher, figure)
    tables = format_markdown(compare(learnings, preset.teacher), preset.teacher, study)
    report = fill(
        TEMPLATE,
        config=args.config.name,
        figure=os.path.relpath(figure, folder),
        tables=tables,
        cost=cost(records, time.monotonic() - start),
        machine=machine(args.device),
        versions=versions(load_platform(preset.platform).PACKAGES),
    )
    (folder / "report.md").write_text(report, encoding="utf-8")
    print(f"\n{report}\nreport: {folder / 'report.md'}")


if __name__ == "__main__":
    raise SystemExit(main())
