"""The options of ``rsl-tbptt`` and their help texts."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rsl_tbptt.tools.platforms import PLATFORMS

TARGETS = ("c", "legged_control2", "rl_sar", "unitree", "unitree_gym")
"""The keys of ``rsl_tbptt.tools.robot.targets.TARGETS``, which is slow to import."""


def image_size(argument: str) -> tuple[str, tuple[int, ...]]:
    """Read ``GROUP=CxHxW`` into the group, and channels, height and width.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    group, _, size = argument.rpartition("=")
    if not (group and re.fullmatch(r"\d+x\d+x\d+", size)):
        raise argparse.ArgumentTypeError(f"{argument!r}, expected for example camera=3x64x64.")
    return group, tuple(map(int, size.split("x")))


def _option(text: str, **options: Any) -> dict[str, Any]:
    return {"help": text, **options}


_REPEATED: dict[str, Any] = {"action": "append", "default": []}
OPTIONS: dict[str, dict[str, Any]] = {
    "--checkpoint": _option(
        "model_<iteration>.pt, or RUN/latest for the newest", type=Path, required=True
    ),
    "evaluate --checkpoint": _option(
        "checkpoint; with --policy, the bundle's own by default", type=Path
    ),
    "--policy": _option(
        "evaluate this bundle of `rsl-tbptt export` instead of the checkpoint",
        type=Path,
        metavar="BUNDLE",
    ),
    "--form": _option(
        "file of the bundle to run (default: onnx)", choices=("onnx", "c"), default="onnx"
    ),
    "--agent": _option(
        "config of the training (default: params/agent.yaml next to the checkpoint)",
        type=Path,
        metavar="YAML",
    ),
    "--trust": _option(
        "also load classes from this package; repeatable", metavar="PACKAGE", **_REPEATED
    ),
    "evaluate --trust": _option(
        "also load this package's classes, or this bundle's C; repeatable",
        metavar="NAME",
        **_REPEATED,
    ),
    "verify --trust": _option(
        "run this bundle's TorchScript and C, too",
        metavar="BUNDLE",
        **_REPEATED,
    ),
    "--device": _option("cpu or cuda:<index> (default: cpu)", default="cpu"),
    "doctor folder": _option(
        "check the training in this log folder instead of the setup",
        type=Path,
        nargs="?",
        metavar="RUN",
    ),
    "doctor --output": _option(
        "check that this folder can be written to (default: the working directory)",
        type=Path,
        default=Path(),
    ),
    "report runs": _option(
        "log folder of a training, or a folder that holds several",
        type=Path,
        nargs="+",
        metavar="RUN",
    ),
    "report --output": _option(
        "HTML file to write (default: report.html, in RUN if that is one training)",
        type=Path,
    ),
    "new name": _option("name of the package and of its task, a Python identifier", metavar="NAME"),
    "new --platform": _option("platform of the task", choices=PLATFORMS, required=True),
    "new --output": _option(
        "folder to create (default: NAME, in the working directory)", type=Path, metavar="FOLDER"
    ),
    "latest folder": _option("log folder of a training", type=Path, metavar="RUN"),
    "resume folder": _option("log folder of a training", type=Path, metavar="RUN"),
    "--run": _option(
        "run the command instead of only printing it", dest="starts", action="store_true"
    ),
    "--iterations": _option(
        "iterations to go on for (default: those left of the training's max_iterations)", type=int
    ),
    "plan --checkpoint": _option(
        "checkpoint whose training's task and options are taken, or RUN/latest", type=Path
    ),
    "plan --agent": _option(
        "with --task: name of the agent's config in Isaac Lab (default: rsl_rl_cfg_entry_point);"
        " with --env: YAML file of the runner's config",
    ),
    "plan --num-envs": _option(
        "numbers of environments (default: 256 512 1024 2048 4096)",
        type=int,
        nargs="+",
        default=[256, 512, 1024, 2048, 4096],
    ),
    "--budget": _option("memory of the device in GB: say what fits", type=float, metavar="GB"),
    "evaluate --output": _option(
        "JSON file to write (default: a new evaluation.json next to the checkpoint)", type=Path
    ),
    "--platform": _option(
        "platform that simulates the task (default: the training's)", choices=PLATFORMS
    ),
    "--task": _option("registered id of the task (default: the training's)"),
    "--env": _option(
        "for rsl_rl alone: function (num_envs, seed, device) that returns a VecEnv",
        metavar="MODULE:FUNCTION",
    ),
    "--overrides": _option(
        "settings of Isaac Lab's task: presets=depth env.NAME=VALUE", nargs="+", default=[]
    ),
    "--episodes": _option(
        "number of episodes, one per environment (default: 256)", type=int, default=256
    ),
    "--max-steps": _option(
        "steps after which an unfinished episode counts as it stands (default:"
        " max_episode_length + 1)",
        type=int,
    ),
    "evaluate --seed": _option("seed of the environments (default: 1000)", type=int, default=1000),
    "memory checkpoint": _option(
        "model_<iteration>.pt, or RUN/latest for the newest", type=Path, metavar="CHECKPOINT"
    ),
    "memory --output": _option(
        "JSON file to replace (default: memory.json next to the checkpoint)",
        type=Path,
    ),
    "memory --num-envs": _option("number of environments (default: 64)", type=int, default=64),
    "memory --steps": _option(
        "steps of the rollout, above the longest lag (default: 300)", type=int, default=300
    ),
    "--image": _option(
        "size of an image group; repeatable", type=image_size, metavar="GROUP=CxHxW", **_REPEATED
    ),
    "export --output": _option(
        "new folder, or an earlier export's (default: a new one, RUN/exported/model_<iteration>)",
        type=Path,
    ),
    "--single-input": _option(
        "give the ONNX file one input, obs, that joins all groups", action="store_true"
    ),
    "--target": _option(
        "also write a folder for this program on robots, or C99 for microcontrollers (c);"
        " repeatable",
        choices=TARGETS,
        **_REPEATED,
    ),
    "--steps": _option("steps of the golden trajectory (default: 200)", type=int, default=200),
    "--drawn": _option(
        "draw the golden trajectory at random instead of simulating the task", action="store_true"
    ),
    "--tolerance": _option(
        "largest difference that passes (default: 1e-4)", type=float, default=1e-4
    ),
    "export --seed": _option("seed of the golden trajectory (default: 0)", type=int, default=0),
    "verify bundle": _option("folder that `rsl-tbptt export` wrote", type=Path, metavar="BUNDLE"),
    "--log": _option(
        "find faults of the program on a robot in what it logged, an .npz or .csv file",
        type=Path,
        metavar="LOG",
    ),
    "play --checkpoint": _option(
        "checkpoint, or RUN/latest; with --video repeatable",
        type=Path,
        action="append",
        required=True,
    ),
    "--num-envs": _option("environments to show (default: 16, with --video 2)", type=int),
    "--video": _option("render the robots into this GIF or WebP file instead", type=Path),
}
"""Options by name; a command stands in front where it has an option of its own by that name."""

POLICY = ("--checkpoint", "--agent", "--trust")
ACTING = ("evaluate --checkpoint", "--policy", "--form", "--agent", "evaluate --trust")
WHERE = ("--platform", "--task", "--env", "--overrides")
EPISODES = ("--episodes", "--max-steps", "evaluate --seed")
REMEMBERED = ("memory --num-envs", "memory --steps")
FORMS = ("--image", "export --output", "--single-input", "--target")
PLANNED = ("plan --checkpoint", *WHERE, "plan --agent", "plan --num-envs", "--budget")
GOLDEN = ("--steps", "--drawn", "--tolerance", "export --seed")
