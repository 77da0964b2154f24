"""Train a single policy of an experiment."""

import argparse
from pathlib import Path

from rsl_tbptt.checkpoints.reading import checkpoint_file
from rsl_tbptt.tools.platforms import run_shown
from scripts.pipeline.experiments import FINETUNE, AnySection, load_experiment
from scripts.pipeline.run import default_run
from scripts.pipeline.stages import train_command


def train_one(description: str | None, *, policy: str, start: str | None = None) -> int:
    """Read the command line, show the platform's own command, and run it.

    Args:
        description: Description in ``--help``.
        policy: Default name of the policy.
        start: Kind of policy that the training starts from, ``"teacher"`` or ``"student"``, which
            becomes a required option. None trains from scratch.

    Returns:
        The exit status of the command.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if start is not None:
        parser.add_argument(
            f"--{start}", dest="start", type=Path, required=True, help=f"the {start}'s model_*.pt"
        )
    parser.add_argument("--config", type=Path, default=FINETUNE, help="experiment, YAML")
    parser.add_argument("--policy", default=policy, help=f"its name in the experiment: {policy}")
    parser.add_argument("--task", help="by default the experiment's")
    for option in ("--num-envs", "--iterations", "--seed"):
        parser.add_argument(option, type=int, help="by default the experiment's")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--output", type=Path, help="folder of logs, by default runs/<experiment>")
    args, extra_args = parser.parse_known_args()
    try:
        experiment = load_experiment(args.config)
    except ValueError as error:
        parser.error(str(error))
    candidates = [n for n, p in experiment.policies.items() if bool(p.starts_from) == bool(start)]
    if args.policy not in candidates:
        origin = "from scratch" if start is None else "from another policy"
        parser.error(
            f"--policy is {args.policy!r}, expected one of {candidates}: those of"
            f" {args.config.name} that start {origin}"
        )
    command = train_command(
        _changed(experiment, args, "task"),
        _changed(experiment.policies[args.policy], args, "num_envs", "iterations", "seed"),
        run_name=args.policy,
        device=args.device,
        checkpoint=None if start is None else str(checkpoint_file(args.start).resolve()),
    )
    return run_shown(command + extra_args, args.output or default_run(args.config), args.device)


def _changed(section: AnySection, args: argparse.Namespace, *names: str) -> AnySection:
    """Return a section with the values of the command line."""
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return section.model_copy(update=given)
