"""Measure the algorithms' updates on this machine.

suite: time and memory beside the installed rsl_rl's for all rows of a table, with figures.

speed: time of one update beside rsl_rl's, alternating in one run, after a check that both leave
equal parameters; the same as `rsl-tbptt bench`.

profile: where the time of one update goes.

rollout-memory: the memory that the update of recurrent PPO takes beyond the rollout storage, for a
rollout and one twice as long, at the same gradient_length. Each in its own process.

peers: one gradient through a recurrent network beside other libraries, which
`make .peers/.installed` installs beside the environment.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path

from rsl_tbptt import bench

OUTPUT = Path("runs") / "bench"


def main() -> int:
    """Measure and print Markdown.

    Returns:
        The exit status: 2 if the libraries differ or an option is wrong.
    """
    args = parse_args()
    try:
        return args.measure(args) or 0
    except (ImportError, NotImplementedError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmarks = parser.add_subparsers(required=True)
    suite = benchmarks.add_parser("suite", help="all rows, with report and figures")
    suite.add_argument("--output", type=Path, default=OUTPUT, help="folder of report and figures")
    suite.add_argument("--rows", default="", help="only rows with this in their name")
    suite.add_argument("--quick", action="store_true", help="tiny rows: to test, not to measure")
    suite.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    suite.set_defaults(measure=run_suite)
    speed = benchmarks.add_parser("speed", help="time of one update beside rsl_rl's")
    bench.add_arguments(speed)
    speed.set_defaults(measure=bench.run)
    for name, measure, text in (
        ("profile", print_profile, "where the time of one update goes"),
        ("rollout-memory", print_rollout_memory, "memory of one update"),
    ):
        one_case = benchmarks.add_parser(name, help=text)
        bench.add_case_arguments(one_case)
        one_case.set_defaults(measure=measure)
    add_peers(benchmarks.add_parser("peers", help="one gradient beside other libraries'"))
    return parser.parse_args()


def add_peers(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison with other libraries."""
    parser.add_argument("--rnn-type", choices=["lstm", "gru"], default="lstm")
    parser.add_argument("--num-envs", type=int, default=512)
    parser.add_argument("--num-steps", type=int, default=24)
    parser.add_argument("--done-rate", type=float, default=0.05)
    parser.add_argument("--rnn-hidden-dim", type=int, default=256)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--pairs", type=int, default=5, help="gradients of each library")
    parser.set_defaults(measure=print_peers)


def run_suite(args: argparse.Namespace) -> None:
    """Measure all rows, write report, data and figures, and print the report.

    Raises:
        ValueError: If no row is meant, or the libraries differ on one: nothing is written then.
    """
    # Imported here, as below, because they take seconds, which --help need not wait for.
    bench.require_models_era()
    from rsl_tbptt.bench.case import check_device
    from scripts.benchmark import rows, suite
    from scripts.benchmark.figures import save_figures
    from scripts.benchmark.report import format_report
    from scripts.benchmark.results import write_json

    check_device(args.device)
    chosen = rows.select(rows.ROWS, args.rows, args.device, quick=args.quick)
    suite.check_all(chosen)
    args.output.mkdir(parents=True, exist_ok=True)
    results = suite.measure(chosen, args.device, isolated=not args.quick)
    write_json(results, args.output / "benchmark.json")
    report = format_report(results, save_figures(results, args.output))
    (args.output / "benchmark.md").write_text(report, encoding="utf-8")
    print(f"{report}\nwrote {args.output}")


def print_profile(args: argparse.Namespace) -> None:
    """Print the share of each kind of operation."""
    case = bench.case_from(args)
    from scripts.benchmark.profile import profile_update
    from scripts.benchmark.report import markdown_table, what_and_where

    shares = [(s.kind, f"{s.share:.0%}", s.num_calls) for s in profile_update(case)]
    heads = ("operations", "of the time", "calls")
    print(f"{what_and_where(case)}\n\n{markdown_table(heads, shares)}")


def print_rollout_memory(args: argparse.Namespace) -> None:
    """Compare a rollout with one twice as long."""
    case = bench.case_from(args)
    from scripts.benchmark.memory import measure_in_own_process
    from scripts.benchmark.report import markdown_table, what_and_where

    cases = (case, replace(case, num_steps=2 * case.num_steps))
    memory = [measure_in_own_process(case, "rsl_tbptt") for case in cases]
    rows = [
        (case.num_steps, f"{used.storage:.1f} MB", f"{used.update_peak:.1f} MB")
        for case, used in zip(cases, memory, strict=True)
    ]
    heads = ("num_steps_per_env", "storage", "peak of update() beyond it")
    growth = memory[1].update_peak / memory[0].update_peak - 1
    print(f"{what_and_where(case)}\n\n{markdown_table(heads, rows)}")
    print(f"\nTwice the rollout takes {growth:+.1%} beyond the storage.")


def print_peers(args: argparse.Namespace) -> None:
    """Measure one gradient beside other libraries.

    All get the same tensors and weights: the mean squared error over a rollout with resets, from a
    zero state, without an optimiser. Each is used as its documentation trains recurrent networks
    and timed only if its gradient equals ours.
    """
    bench.require_models_era()
    from rsl_tbptt.bench.case import check_device
    from scripts.benchmark.peers.job import Job, build_ours
    from scripts.benchmark.peers.measure import measure_peers, table

    check_device(args.device)
    job = Job(**{field.name: getattr(args, field.name) for field in fields(Job)})
    print(f"{job.title()}\n\n{table(measure_peers(job, args.pairs))}")
    print(f"\nrsl_tbptt: {build_ours(job).how}.")


if __name__ == "__main__":
    raise SystemExit(main())
