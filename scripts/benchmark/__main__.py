"""Measure the algorithms' updates on this machine.

suite: time and memory beside the installed rsl_rl's for all rows of a table, with figures.

agents: the same for the recurrent agents of Isaac Lab and others, as large as rsl_rl's process may
become, and what ours would take at their own size.

Of one case: `rsl-tbptt bench`, with --memory and --profile.

peers: one gradient through a recurrent network beside other libraries, which
`make .peers/.installed` installs beside the environment.
"""

import argparse
import sys
from pathlib import Path

from rsl_tbptt import bench

SIZES = {"num_envs": 512, "num_steps": 24, "rnn_hidden_dim": 256}
PEERS_JOB = {**SIZES, "done_rate": 0.05, "device": "cpu"}
"""Numbers of what the peers compute, by default."""


def main() -> int:
    """Measure and print Markdown.

    Returns:
        The exit status: 2 if the libraries differ or an option is wrong.
    """
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
    for name, folder, what in (
        ("suite", "bench", "all rows, with report and figures"),
        ("agents", "agents", "recurrent agents of Isaac Lab and others, with report and figures"),
    ):
        rows = benchmarks.add_parser(name, help=what)
        rows.add_argument("--output", type=Path, default=Path("runs", folder), help="of the report")
        rows.add_argument("--rows", default="", help="only rows with this in their name")
        rows.add_argument("--quick", action="store_true", help="tiny rows: to test, not to measure")
        rows.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
        rows.set_defaults(measure=run_rows, of_agents=name == "agents", gigabytes=8)
    rows.add_argument("--gigabytes", type=float, help="of rsl_rl's process (default: 8)")
    peers = benchmarks.add_parser("peers", help="one gradient beside other libraries'")
    peers.add_argument("--rnn-type", choices=["lstm", "gru"], default="lstm")
    for option, default in PEERS_JOB.items():
        peers.add_argument(f"--{option.replace('_', '-')}", type=type(default), default=default)
    peers.add_argument("--pairs", type=int, default=5, help="gradients of each library")
    peers.set_defaults(measure=print_peers)
    return parser.parse_args()


def run_rows(args: argparse.Namespace) -> None:
    """Measure rows, write report, data and figures, and print the report.

    Raises:
        ImportError: If Isaac Lab is missing, whose agents are meant.
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
    known = tuple(rows.rows_of_agents()) if args.of_agents else rows.ROWS
    chosen = rows.select(known, args.rows, args.device, quick=args.quick)
    suite.check_all(chosen)
    args.output.mkdir(parents=True, exist_ok=True)
    results = suite.measure(chosen, args.device, args.gigabytes, isolated=not args.quick)
    write_json(results, args.output / "benchmark.json")
    report = format_report(results, save_figures(results, args.output))
    (args.output / "benchmark.md").write_text(report, encoding="utf-8")
    print(f"{report}\nwrote {args.output}")


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
    job = Job(rnn_type=args.rnn_type, **{name: getattr(args, name) for name in PEERS_JOB})
    print(f"{job}\n\n{table(measure_peers(job, args.pairs))}")
    print(f"\nrsl_tbptt: {build_ours(job).how}.")


if __name__ == "__main__":
    raise SystemExit(main())
