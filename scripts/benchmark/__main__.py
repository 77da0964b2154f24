"""Measure the algorithms' updates on this machine.

suite: time and memory next to the installed rsl_rl's for all rows of rows.yaml.

agents: the same for Isaac Lab's recurrent agents.

profile: where the time of one of our updates goes, by torch's profiler.

recorded: recorded optimiser steps next to steps that run as they are, with the error of a capture.

host: launches of an optimiser step, and the time of the host, which a GPU cannot shorten.

update: time and memory of one update of your own sizes next to the installed rsl_rl's.
"""

import argparse
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tabulate import tabulate

from rsl_tbptt.files import write_json
from scripts.benchmark.case import add_case_arguments, case_from, milliseconds


def main() -> int:
    """Measure and print Markdown; return 2 if the libraries differ or an option is wrong."""
    args = parse_args()
    try:
        args.measure(args)
    except (ImportError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmarks = parser.add_subparsers(required=True)
    for name, file, folder in (("suite", "rows", "bench"), ("agents", "agents", "agents")):
        rows = benchmarks.add_parser(name, help=f"rows of {file}.yaml, with a report")
        folder = Path("runs", folder)
        rows.add_argument("--output", type=Path, default=folder, help="folder of the report")
        rows.add_argument("--rows", default="", help="only rows with this in their name")
        rows.add_argument("--quick", action="store_true", help="tiny rows: to test, not to measure")
        rows.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
        rows.set_defaults(measure=run_rows, file=file)
    profile = benchmarks.add_parser("profile", help="where the time of one of our updates goes")
    add_case_arguments(profile)
    profile.set_defaults(measure=print_profile)
    update = benchmarks.add_parser("update", help="one update of your own sizes next to rsl_rl's")
    add_case_arguments(update)
    update.add_argument("--pairs", type=int, default=5, help="updates of each library (5)")
    update.add_argument("--memory", action="store_true", help="also the peak of memory")
    update.set_defaults(measure=print_update)
    recorded = benchmarks.add_parser("recorded", help="recorded steps next to steps as they are")
    recorded.add_argument("--quick", action="store_true", help="tiny cases: to test")
    recorded.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    recorded.set_defaults(measure=compare_recorded)
    host = benchmarks.add_parser("host", help="launches of an optimiser step, time of the host")
    host.add_argument("--updates", type=int, default=20, help="measured for each (20)")
    host.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    host.set_defaults(measure=print_host_times)
    return parser.parse_args()


def run_rows(args: argparse.Namespace) -> None:
    """Measure rows, write report and data, and print the report.

    Raises:
        ValueError: If no row matches, or the libraries differ on one. Then nothing is written.
    """
    # Imported here and below: they take seconds to load, and --help need not wait for them.
    from scripts.benchmark import suite

    rows = suite.select(suite.load_rows(args.file), args.rows, args.device)
    if args.quick:
        rows = [replace(row, case=suite.tiny(row.case)) for row in rows]
    results = suite.measure(rows, args.device)
    args.output.mkdir(parents=True, exist_ok=True)
    write_json(args.output / "benchmark.json", results)
    report = suite.report(results)
    (args.output / "benchmark.md").write_text(report, encoding="utf-8")
    print(f"{report}\nwrote {args.output}")


def print_profile(args: argparse.Namespace) -> None:
    """Print the time of our update, and where it goes: by operation, on a GPU by kernel."""
    from scripts.benchmark.profiling import device_time, profile_update, time_update

    case = case_from(args)
    taken, busy = time_update(case)
    print(f"{case}\n\n{milliseconds(taken)} an update, {milliseconds(busy)} of them on the host\n")
    profiler, sort_by = profile_update(case), "self_cpu_time_total"
    if case.device != "cpu":
        working, sort_by = device_time(profiler), "self_device_time_total"
        print(f"the GPU works for {milliseconds(working)}, {working / taken:.0%} of an update\n")
    averages = profiler.key_averages()
    print(averages.table(sort_by=sort_by, row_limit=20, max_name_column_width=50))


def print_update(args: argparse.Namespace) -> None:
    """Print one update's time and memory next to rsl_rl's."""
    from scripts.benchmark import suite

    case = case_from(args)
    rows = [suite.Row(name="update", case=case, pairs=args.pairs)]
    if args.memory:
        rows.append(suite.Row(name="update", case=case, measure="memory"))
    print(suite.report(suite.measure(rows, case.device)))


def compare_recorded(args: argparse.Namespace) -> None:
    """Compare recorded steps with steps that run as they are.

    Raises:
        ValueError: If they differ, or steps are not recorded on a GPU.
    """
    from scripts.benchmark.recorded import compare

    if not compare(args.device, quick=args.quick):
        raise ValueError("Recorded steps differ from steps as they are, or were not recorded.")


def print_host_times(args: argparse.Namespace) -> None:
    """Print the launches of an optimiser step by parts, and the time of the host in one."""
    from scripts.benchmark.launches import count
    from scripts.benchmark.profiling import CASES, host_times

    counted = {name: count(case) for name, (case, _) in CASES.items()}
    rows = [(part, *chain(*(c[part] for c in counted.values()))) for part in counted["ppo"]]
    columns = [f"{name}, {of}" for name in counted for of in ("all", "longest chain")]
    print(tabulate(rows, ("launches of a step on a GPU", *columns), "github"), end="\n\n")
    times = host_times(args.updates, args.device)
    rows = [(*row, f"{value:.2f}") for row, value in times.items()]
    heads = ("algorithm", "library", "milliseconds per optimiser step")
    print(tabulate(rows, heads, "github", disable_numparse=True))


if __name__ == "__main__":
    raise SystemExit(main())
