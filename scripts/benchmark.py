#!/usr/bin/env python
"""Measure the algorithms' updates on this machine.

speed: time of one update beside the installed rsl_rl's, alternating in one run, after a check that
both leave equal parameters.

rollout-memory: the memory that the update of recurrent PPO takes beyond the rollout storage, for a
rollout and one twice as long, at the same gradient_length. Each in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

from _benchmark_case import Case
from _benchmark_memory import EXACT_MALLOC, Memory, measure_update_memory
from _benchmark_speed import measure_speed


def main() -> None:
    """Measure and print a Markdown table."""
    args = parse_args()
    case = Case(**{name: getattr(args, name) for name in Case.__dataclass_fields__})
    if args.in_process:
        print(json.dumps(asdict(measure_update_memory(case, "rsl_tbptt"))))
        return
    args.measure(case, args)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    benchmarks: dict[str, Callable[[Case, argparse.Namespace], None]] = {
        "speed": print_speed,
        "rollout-memory": print_rollout_memory,
    }
    parser.add_argument("benchmark", choices=benchmarks)
    parser.add_argument("--algorithm", choices=["ppo", "distillation"], default="ppo")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--num-steps", type=int, default=24)
    parser.add_argument("--gradient-length", type=int, default=12)
    parser.add_argument("--rnn-type", choices=["lstm", "gru"], default="lstm")
    parser.add_argument("--rnn-hidden-dim", type=int, default=256)
    parser.add_argument("--done-rate", type=float, default=0.05)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--use-mixed-precision", action="store_true", help="bfloat16 products")
    parser.add_argument("--pairs", type=int, default=5, help="updates of each library, for speed")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.measure = benchmarks[args.benchmark]
    return args


def print_speed(case: Case, args: argparse.Namespace) -> None:
    """Compare with the installed rsl_rl."""
    speed = measure_speed(case, args.pairs)
    print(
        f"{title(case)}\n\n"
        "| rsl_rl | rsl_tbptt | ratio | lowest | highest |\n|---|---|---|---|---|\n"
        f"| {speed.rsl_rl * 1e3:.0f} ms | {speed.ours * 1e3:.0f} ms | {speed.ratio:.2f}"
        f" | {speed.lowest_ratio:.2f} | {speed.highest_ratio:.2f} |"
    )


def print_rollout_memory(case: Case, _args: argparse.Namespace) -> None:
    """Compare a rollout with one twice as long."""
    print(
        f"{title(case)}\n\n"
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


def title(case: Case) -> str:
    """Say what is measured."""
    return (
        f"{case.algorithm}, {case.rnn_type.upper()}-{case.rnn_hidden_dim}, {case.num_envs}"
        f" environments, {case.num_steps} steps, gradient_length {case.gradient_length}, done rate"
        f" {case.done_rate}, {'bfloat16' if case.use_mixed_precision else 'float32'}, {case.device}"
    )


def measure_in_own_process(case: Case) -> Memory:
    """Measure a case in a fresh process, so that nothing but it is counted."""
    values = {name: value for name, value in asdict(case).items() if value is not False}
    options = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in values.items()
    ]
    command = [sys.executable, __file__, "rollout-memory", "--in-process", *options]
    result = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | EXACT_MALLOC
    )
    return Memory(**json.loads(result.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
