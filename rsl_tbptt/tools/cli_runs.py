"""The commands of ``rsl-tbptt`` about setups and trainings: doctor, report, latest and resume."""

from __future__ import annotations

import sys
from argparse import Namespace as Arguments
from contextlib import redirect_stdout

from rsl_tbptt.tools.doctor import diagnose, require


def run_doctor(args: Arguments) -> int:
    """Check this setup, or a training."""
    if args.folder is None:
        return 0 if diagnose(args.device, args.output) else 1
    require("doctor RUN")
    from rsl_tbptt.tools.run_doctor import diagnose_run

    return 0 if diagnose_run(args.folder) else 1


def run_report(args: Arguments) -> int:
    """Write a page about trainings."""
    from rsl_tbptt.tools.report import report

    print(f"wrote {report(args.runs, args.output)}")
    return 0


def run_latest(args: Arguments) -> int:
    """Print the newest checkpoint of a training, and nothing else to stdout."""
    from rsl_tbptt.checkpoints.reading import latest_checkpoint

    print(latest_checkpoint(args.folder))
    return 0


def run_resume(args: Arguments) -> int:
    """Print the command that continues a training, or run it; remarks go to stderr."""
    from rsl_tbptt.tools.platforms import run_shown
    from rsl_tbptt.tools.resume import resumption

    with redirect_stdout(sys.stderr):  # simulators print while their tasks are looked up
        found = resumption(args.folder, task=args.task, iterations=args.iterations)
    for remark in found.remarks:
        print(f"# {remark}", file=sys.stderr)
    if args.starts:
        return run_shown(found.command, found.folder, found.device)
    print(found.line)
    return 0
