"""The commands of ``rsl-tbptt`` about a setup or a training: doctor and report."""

from __future__ import annotations

from argparse import Namespace as Arguments

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
