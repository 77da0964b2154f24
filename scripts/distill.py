#!/usr/bin/env python
"""Distil a teacher into one of the demo's students with Isaac Lab's own command.

Arguments that are not listed go on to `isaaclab train`, for example
`agent.algorithm.gradient_length=8`.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from _isaaclab import run_shown, train_command
from _preset import DEFAULT_PRESET, DEFAULT_RUN, load_preset


def main() -> int:
    """Distil.

    Returns:
        The exit status of Isaac Lab.
    """
    preset = load_preset(DEFAULT_PRESET)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--teacher", type=Path, required=True, help="the teacher's model_*.pt")
    parser.add_argument("--student", choices=("student", "memoryless"), default="student")
    parser.add_argument("--task", default=preset.task)
    parser.add_argument("--num-envs", type=int, default=preset.num_envs)
    parser.add_argument("--iterations", type=int, help="by default the preset's")
    parser.add_argument("--seed", type=int, help="by default the preset's")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--output", type=Path, default=DEFAULT_RUN, help="folder to log beneath")
    args, further = parser.parse_known_args()
    given = {name: getattr(args, name) for name in ("iterations", "seed")}
    training = dataclasses.replace(
        getattr(preset, args.student),
        **{name: value for name, value in given.items() if value is not None},
    )
    command = train_command(
        training,
        task=args.task,
        num_envs=args.num_envs,
        run_name=args.student,
        device=args.device,
        checkpoint=str(args.teacher.resolve()),
    )
    return run_shown(command + further, args.output, args.device)


if __name__ == "__main__":
    raise SystemExit(main())
