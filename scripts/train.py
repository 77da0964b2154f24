#!/usr/bin/env python
"""Train the demo's teacher with Isaac Lab's own command, shown before it runs.

Arguments that are not listed go on to `isaaclab train`, for example
`agent.algorithm.learning_rate=5e-4`.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from _isaaclab import run_shown, train_command
from _preset import DEFAULT_PRESET, DEFAULT_RUN, load_preset


def main() -> int:
    """Train.

    Returns:
        The exit status of Isaac Lab.
    """
    preset = load_preset(DEFAULT_PRESET)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default=preset.task)
    parser.add_argument("--num-envs", type=int, default=preset.num_envs)
    parser.add_argument("--iterations", type=int, default=preset.teacher.iterations)
    parser.add_argument("--seed", type=int, default=preset.teacher.seed)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--output", type=Path, default=DEFAULT_RUN, help="folder to log beneath")
    args, further = parser.parse_known_args()
    command = train_command(
        dataclasses.replace(preset.teacher, iterations=args.iterations, seed=args.seed),
        task=args.task,
        num_envs=args.num_envs,
        run_name="teacher",
        device=args.device,
    )
    return run_shown(command + further, args.output, args.device)


if __name__ == "__main__":
    raise SystemExit(main())
