"""Train a preset's policies, evaluate, export and report.

A policy may start from an earlier one: a student from its teacher, PPO from a distilled student.
Every stage is one command, shown as it runs; training is the platform's own. Stages that are
finished with the same settings are not run again, so an interrupted run goes on where it was.
"""

import argparse
import time

from scripts.pipeline.presets import default_run, load_preset
from scripts.pipeline.run import cost, exit_status, run_parser, run_stages
from scripts.pipeline.stages import pipeline_stages


def main() -> int:
    """Run a preset; return the exit status."""
    args = run_parser("python -m scripts.pipeline", __doc__).parse_args()
    return exit_status(lambda: run_preset(args))


def run_preset(args: argparse.Namespace) -> None:
    """Run all stages of a preset, write the report and print its table."""
    start = time.monotonic()
    preset = load_preset(args.config)
    folder = (args.output or default_run(args.config)).resolve()
    stages = pipeline_stages(preset, folder, args.device)
    records = run_stages(stages, folder, args.device, args.jobs)
    # Imported here: it takes seconds, which --help and the first stage need not wait for.
    from scripts.pipeline.report import format_table, write_report

    results = write_report(folder, preset, records, args.device)
    print(f"\n{format_table(results)}\n")
    for verdict in results["verdicts"]:
        print(f"{'yes' if verdict['passed'] else ' NO'}  {verdict['text']}")
    print(f"\nreport: {folder / 'report.html'}\n{cost(records, time.monotonic() - start)}")


if __name__ == "__main__":
    raise SystemExit(main())
