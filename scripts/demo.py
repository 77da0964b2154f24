#!/usr/bin/env python
"""Train a teacher, distil it into an LSTM and a memoryless student, evaluate and report.

Every stage is one command, shown as it runs; training is Isaac Lab's own. Stages that are finished
with the same settings are not run again, so an interrupted demo goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from _conductor import Conductor, StageError
from _demo_stages import demo_stages
from _preset import DEFAULT_PRESET, DEFAULT_RUN, load_preset
from _progress import clock
from _results import format_table, verdicts
from _stages import Marker, RunFolder


def main() -> int:
    """Run all stages and print the result.

    Returns:
        The exit status.
    """
    args = parse_args()
    start = time.monotonic()
    # A demo that is told to stop ends its child too, as with Ctrl+C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        preset = load_preset(args.config)
        run = RunFolder(args.output)
        stages = demo_stages(run, preset, args.config.resolve(), args.device)
        markers = Conductor(run, args.device).run_all(stages)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on with the unfinished stage", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError, StageError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print_results(run, markers, time.monotonic() - start)
    return 0


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--output", type=Path, default=DEFAULT_RUN, help="run folder")
    parser.add_argument("--config", type=Path, default=DEFAULT_PRESET, help="preset, YAML")
    return parser.parse_args()


def print_results(run: RunFolder, markers: dict[str, Marker], seconds: float) -> None:
    """Print the closing table.

    Args:
        run: A finished run folder.
        markers: Its stages' markers.
        seconds: Duration of this call.
    """
    results = json.loads((run.path / "results.json").read_text(encoding="utf-8"))
    peak = max(marker.peak_memory_gb for marker in markers.values())
    spent = sum(marker.seconds for marker in markers.values())
    print(f"\n{format_table(results)}\n")
    for reached, text in verdicts(results):
        print(f"{'yes' if reached else ' NO'}  {text}")
    print(
        f"\nreport: {run.path / 'report.html'}\n"
        f"time: {clock(seconds)} now, {clock(spent)} for all stages; peak memory {peak:.2f} GB"
    )


if __name__ == "__main__":
    raise SystemExit(main())
