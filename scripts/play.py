#!/usr/bin/env python
"""Play a checkpoint with Isaac Lab's own command, with the task and agent it was trained with.

Ends with Ctrl+C. Arguments that are not listed go on to `isaaclab play`, for example
`--viz newton` for a window.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _commands import run_shown
from _isaaclab import MANIFEST, placement, run_manifest


def main() -> int:
    """Play.

    Returns:
        The exit status of Isaac Lab.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="model_<iteration>.pt")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    args, further = parser.parse_known_args()
    checkpoint = args.checkpoint.resolve()
    trained = run_manifest(checkpoint)
    if trained is None:
        parser.error(
            f"{checkpoint.parent / MANIFEST} is missing: name a checkpoint in a log folder of"
            " isaaclab train"
        )
    command = ["isaaclab", "play", "--rl_library", trained["library"], "--task", trained["task"]]
    command += ["--agent", trained["metadata"]["agent"], "--checkpoint", str(checkpoint)]
    where = placement(trained["task"], args.device)
    command += ["--num_envs", str(args.num_envs), *where, *further]
    return run_shown(command, Path.cwd(), args.device)


if __name__ == "__main__":
    raise SystemExit(main())
