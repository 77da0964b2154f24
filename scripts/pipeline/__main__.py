"""Train an experiment's policies, evaluate, export and report.

A policy may start from an earlier one: a student from its teacher, PPO from a distilled student.
Every stage is one command, which is shown when it starts; training is the platform's own command. A
finished stage is not run again while its command is the same, so an interrupted run can continue.
"""

import argparse
import time

from scripts.pipeline.experiments import load_experiment
from scripts.pipeline.run import cost, run_script, run_stages
from scripts.pipeline.stages import pipeline_stages


def main() -> int:
    """Run an experiment; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pipeline", description=__doc__)
    return run_script(parser, run_experiment)


def run_experiment(args: argparse.Namespace) -> None:
    """Run all stages of an experiment, write the report and print its table."""
    start, folder = time.monotonic(), args.output
    experiment = load_experiment(args.config)
    stages = pipeline_stages(experiment, args.device)
    records = run_stages(stages, folder, args.device, args.jobs)
    # Imported here: it takes seconds, and --help and the first stage need not wait for it.
    from scripts.pipeline.report import format_table, write_report

    results = write_report(folder, experiment, records, args.device)
    print(f"\n{format_table(results)}\n")
    for check in results["acceptance"]:
        print(f"{'yes' if check['passed'] else ' NO'}  {check['text']}")
    print(f"\nreport: {folder / 'report.md'}\n{cost(records, time.monotonic() - start)}")


if __name__ == "__main__":
    raise SystemExit(main())
