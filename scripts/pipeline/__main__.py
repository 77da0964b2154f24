"""Train a preset's policies, evaluate, export and report.

A policy may start from an earlier one: a student from its teacher, PPO from a distilled student.
Every stage is one command, shown as it runs; training is the platform's own. Stages that are
finished with the same settings are not run again, so an interrupted run goes on where it was.
"""

import argparse
import json
import time

from scripts.pipeline.conductor import Conductor, cost, exit_status, run_parser
from scripts.pipeline.presets import default_run, load_preset
from scripts.pipeline.results import format_table
from scripts.pipeline.run_folder import Marker, RunFolder
from scripts.pipeline.stages import pipeline_stages


def main() -> int:
    """Run a preset.

    Returns:
        The exit status.
    """
    args = run_parser("python -m scripts.pipeline", __doc__).parse_args()
    return exit_status(lambda: run_preset(args))


def run_preset(args: argparse.Namespace) -> None:
    """Run all stages of a preset and print the result.

    Args:
        args: The command line.
    """
    start = time.monotonic()
    preset = load_preset(args.config)
    run = RunFolder(args.output or default_run(args.config))
    stages = pipeline_stages(run, preset, args.config.resolve(), args.device)
    markers = Conductor(run, args.device, args.jobs).run_all(stages)
    print_results(run, markers, time.monotonic() - start)


def print_results(run: RunFolder, markers: dict[str, Marker], seconds: float) -> None:
    """Print the closing table.

    Args:
        run: A finished run folder.
        markers: Its stages' markers.
        seconds: Duration of this call.
    """
    results = json.loads((run.path / "results.json").read_text(encoding="utf-8"))
    print(f"\n{format_table(results)}\n")
    for verdict in results["verdicts"]:
        print(f"{'yes' if verdict['passed'] else ' NO'}  {verdict['text']}")
    print(f"\nreport: {run.path / 'report.html'}\n{cost(markers, seconds)}")


if __name__ == "__main__":
    raise SystemExit(main())
