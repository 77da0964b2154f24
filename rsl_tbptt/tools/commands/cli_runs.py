"""The commands of ``rsl-tbptt`` about trainings: doctor, report, latest, resume, plan and new."""

from __future__ import annotations

import io
import sys
from argparse import Namespace as Arguments
from contextlib import redirect_stdout

from rsl_tbptt.tools.commands.cli_policies import where_of
from rsl_tbptt.tools.commands.doctor import check_device, diagnose, require


def run_doctor(args: Arguments) -> int:
    """Check this setup, or a training."""
    if args.folder is None:
        return 0 if diagnose(args.device, args.output) else 1
    require("doctor RUN")
    from rsl_tbptt.tools.runs.run_doctor import diagnose_run

    return 0 if diagnose_run(args.folder) else 1


def run_report(args: Arguments) -> int:
    """Write a page about trainings."""
    from rsl_tbptt.tools.runs.report import report

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
    from rsl_tbptt.tools.runs.resume import resumption

    with redirect_stdout(sys.stderr):  # simulators print while their tasks are looked up
        found = resumption(args.folder, task=args.task, iterations=args.iterations)
    for remark in found.remarks:
        print(f"# {remark}", file=sys.stderr)
    if args.starts:
        return run_shown(found.command, found.folder, found.device)
    print(found.line)
    return 0


def run_plan(args: Arguments) -> int:
    """Print a table of the memory that updates take.

    Raises:
        ValueError: If options contradict each other or a number is too small.
    """
    from rsl_tbptt.checkpoints.reading import checkpoint_file
    from rsl_tbptt.tools.simulate.plan import answer, plan, planned, table

    where = where_of(args)
    if min(args.num_envs) < 1:
        raise ValueError(f"--num-envs is {min(args.num_envs)}, expected at least 1.")
    check_device(args.device)
    with redirect_stdout(io.StringIO()):  # simulators print, and rsl_rl its models for every row
        what = planned(
            args.checkpoint and checkpoint_file(args.checkpoint),
            platform_name=where["platform_name"],
            task=where["task"],
            agent=args.agent,
        )
        rows = plan(what, args.num_envs, overrides=args.overrides, device=args.device)
    print(f"MB of {what.task.task}. An update's peak comes on top of the columns after it.\n")
    print(table(rows, args.budget))
    if args.budget is not None:
        print(f"\n{answer(rows, args.budget)}")
    return 0


def run_new(args: Arguments) -> int:
    """Write a package for a task of your own."""
    from rsl_tbptt.tools.commands.new import new

    print(f"wrote {new(args.name, args.platform, args.output)}, whose README.md has its commands")
    return 0
