#!/usr/bin/env python
"""Measure the algorithms' updates on this machine.

suite: time and memory beside the installed rsl_rl's for all rows of a table, with figures.

speed: time of one update beside rsl_rl's, alternating in one run, after a check that both leave
equal parameters.

profile: where the time of one update goes.

rollout-memory: the memory that the update of recurrent PPO takes beyond the rollout storage, for a
rollout and one twice as long, at the same gradient_length. Each in its own process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from _benchmark_case import Case, title
from _benchmark_memory import measure_in_own_process
from _benchmark_speed import measure_speed

OUTPUT = Path("runs") / "bench"


def main() -> int:
    """Measure and print Markdown.

    Returns:
        The exit status: 2 if the libraries differ or an option is wrong.
    """
    args = parse_args()
    try:
        args.measure(args)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    benchmarks = parser.add_subparsers(dest="benchmark", required=True)
    suite = benchmarks.add_parser("suite", help="all rows, with report and figures")
    suite.add_argument("--output", type=Path, default=OUTPUT, help="folder of report and figures")
    suite.add_argument("--rows", default="", help="only rows with this in their name")
    suite.add_argument("--quick", action="store_true", help="tiny rows: to test, not to measure")
    suite.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    suite.set_defaults(measure=run_suite)
    speed = benchmarks.add_parser("speed", help="time of one update beside rsl_rl's")
    speed.add_argument("--pairs", type=int, default=5, help="updates of each library")
    speed.set_defaults(measure=print_speed)
    memory = benchmarks.add_parser("rollout-memory", help="memory of one update")
    memory.set_defaults(measure=print_rollout_memory)
    shares = benchmarks.add_parser("profile", help="where the time of one update goes")
    shares.set_defaults(measure=print_profile)
    for benchmark in (speed, memory, shares):
        add_case(benchmark)
    return parser.parse_args()


def add_case(parser: argparse.ArgumentParser) -> None:
    """Add the options of a case."""
    parser.add_argument("--algorithm", choices=["ppo", "distillation"], default="ppo")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--num-steps", type=int, default=24)
    parser.add_argument("--gradient-length", type=int, default=12)
    parser.add_argument("--num-mini-batches", type=int, default=4, help="of PPO")
    parser.add_argument("--rnn-type", choices=["lstm", "gru"], default="lstm")
    parser.add_argument("--rnn-hidden-dim", type=int, default=256)
    parser.add_argument("--rnn-num-layers", type=int, default=1)
    parser.add_argument("--done-rate", type=float, default=0.05)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--use-mixed-precision", action="store_true", help="bfloat16 products")


def case_from(args: argparse.Namespace) -> Case:
    """Build the case that the options describe."""
    return Case(**{name: getattr(args, name) for name in Case.__dataclass_fields__})


def run_suite(args: argparse.Namespace) -> None:
    """Measure all rows, write report, data and figures, and print the report.

    Raises:
        ValueError: If no row is meant, or the libraries differ on one: nothing is written then.
    """
    # Imported here because they take seconds, which --help need not wait for.
    from _benchmark_figures import save_figures
    from _benchmark_report import format_report
    from _benchmark_results import write_json
    from _benchmark_rows import ROWS
    from _benchmark_suite import check_all, measure

    rows = ROWS.select(args.rows).on(args.device)
    rows = rows.quick() if args.quick else rows
    check_all(rows)
    args.output.mkdir(parents=True, exist_ok=True)
    results = measure(rows, args.device, isolated=not args.quick)
    write_json(results, args.output / "benchmark.json")
    report = format_report(results, save_figures(results, args.output))
    (args.output / "benchmark.md").write_text(report, encoding="utf-8")
    print(f"{report}\nwrote {args.output}")


def print_speed(args: argparse.Namespace) -> None:
    """Compare with the installed rsl_rl.

    Raises:
        ValueError: If the libraries do not leave equal parameters on small copies of the case.
    """
    case = case_from(args)
    speed = measure_speed(case, args.pairs)
    ours, theirs = (1e3 * statistics.median(times) for times in (speed.ours, speed.rsl_rl))
    print(
        f"{title(case)}, {case.device}\n\n"
        "| rsl_rl | rsl_tbptt | ratio | lowest | highest |\n|---|---|---|---|---|\n"
        f"| {theirs:.0f} ms | {ours:.0f} ms | {speed.ratio:.2f}"
        f" | {min(speed.ratios):.2f} | {max(speed.ratios):.2f} |"
    )


def print_rollout_memory(args: argparse.Namespace) -> None:
    """Compare a rollout with one twice as long."""
    case = case_from(args)
    print(
        f"{title(case)}, {case.device}\n\n"
        "| num_steps_per_env | storage | peak of update() beyond it |\n|---|---|---|"
    )
    peaks = []
    for longer in (case, replace(case, num_steps=2 * case.num_steps)):
        memory = measure_in_own_process(longer, "rsl_tbptt")
        peaks.append(memory.update_peak)
        print(
            f"| {longer.num_steps} | {memory.storage:.1f} MB | {memory.update_peak:.1f} MB |",
            flush=True,
        )
    print(f"\nTwice the rollout takes {peaks[1] / peaks[0] - 1:+.1%} beyond the storage.")


def print_profile(args: argparse.Namespace) -> None:
    """Print the share of each kind of operation."""
    from _benchmark_profile import profile_update

    case = case_from(args)
    print(f"{title(case)}, {case.device}\n\n| operations | of the time | calls |\n|---|---|---|")
    for share in profile_update(case):
        print(f"| {share.kind} | {share.share:.0%} | {share.num_calls} |")


if __name__ == "__main__":
    raise SystemExit(main())
