"""Train policies with several seeds, evaluate them, and compare how they learned.

Writes report.md, with tables and the learning curves, into the run folder. A finished stage is not
run again while its command is the same, so an interrupted run can continue.
"""

import argparse
import os
import time
from pathlib import Path

from rsl_tbptt.tools.machine import machine, versions
from rsl_tbptt.tools.platforms import load_platform
from rsl_tbptt.tools.templates import fill
from scripts.pipeline.run import cost, run_script, run_stages
from scripts.pipeline.sweep import load_sweep, sweep_stages

TEMPLATE = Path(__file__).with_name("sweep.md.j2")


def main() -> int:
    """Run a sweep; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pipeline.curves", description=__doc__)
    parser.add_argument("--figure", type=Path, help="another place for the figure")
    return run_script(parser, run_sweep)


def run_sweep(args: argparse.Namespace) -> None:
    """Run all stages of a sweep, print the table and write the figure."""
    start, folder = time.monotonic(), args.output
    sweep, experiment = load_sweep(args.config)
    records = run_stages(
        sweep_stages(sweep, experiment, args.device), folder, args.device, args.jobs
    )
    # Imported here: they take seconds, and --help and the first stage need not wait for them.
    from scripts.pipeline.figure import save_figure
    from scripts.pipeline.learning import compare, format_markdown, read_learnings

    learnings = read_learnings(folder, experiment, sweep, records)
    figure = args.figure or folder / "curves.svg"
    save_figure(learnings, experiment.teacher, figure)
    tables = format_markdown(compare(learnings, experiment.teacher), experiment.teacher, sweep)
    report = fill(
        TEMPLATE,
        config=args.config.name,
        figure=os.path.relpath(figure, folder),
        tables=tables,
        cost=cost(records, time.monotonic() - start),
        machine=machine(args.device),
        versions=versions(load_platform(experiment.platform).PACKAGES),
    )
    (folder / "report.md").write_text(report, encoding="utf-8")
    print(f"\n{report}\nreport: {folder / 'report.md'}")


if __name__ == "__main__":
    raise SystemExit(main())
