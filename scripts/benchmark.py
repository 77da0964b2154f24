#!/usr/bin/env python
"""Measure the algorithms' updates on this machine.

rollout-memory: the memory that the update of recurrent PPO takes beyond the rollout storage, for a
rollout and one twice as long, at the same gradient_length. Each in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

from _benchmark_case import Case, Memory, measure_update_memory

# With these every larger tensor is given back to the system when it is freed: the process then
# holds what is in use, and its peak is that of the update.
EXACT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def main() -> None:
    """Measure and print a Markdown table."""
    args = parse_args()
    case = Case(**{name: getattr(args, name) for name in Case.__dataclass_fields__})
    if args.in_process:
        print(json.dumps(asdict(measure_update_memory(case))))
        return
    print_rollout_memory(case)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=["rollout-memory"])
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--num-steps", type=int, default=24)
    parser.add_argument("--gradient-length", type=int, default=12)
    parser.add_argument("--rnn-type", choices=["lstm", "gru"], default="lstm")
    parser.add_argument("--rnn-hidden-dim", type=int, default=256)
    parser.add_argument("--done-rate", type=float, default=0.05)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def print_rollout_memory(case: Case) -> None:
    """Compare a rollout with one twice as long."""
    print(
        f"PPO, {case.rnn_type.upper()}-{case.rnn_hidden_dim}, {case.num_envs} environments,"
        f" gradient_length {case.gradient_length}, 4 mini-batches, {case.device}\n\n"
        "| num_steps_per_env | storage | peak of update() beyond it |\n|---|---|---|"
    )
    peaks = []
    for longer in (case, replace(case, num_steps=2 * case.num_steps)):
        memory = measure_in_own_process(longer)
        peaks.append(memory.update_peak)
        print(
            f"| {longer.num_steps} | {memory.storage:.1f} MB | {memory.update_peak:.1f} MB |",
            flush=True,
        )
    print(f"\nTwice the rollout takes {peaks[1] / peaks[0] - 1:+.1%} beyond the storage.")


def measure_in_own_process(case: Case) -> Memory:
    """Measure a case in a fresh process, so that nothing but it is counted."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(case).items()]
    command = [sys.executable, __file__, "rollout-memory", "--in-process", *options]
    result = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | EXACT_MALLOC
    )
    return Memory(**json.loads(result.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
