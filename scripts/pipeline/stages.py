"""An experiment's stages: what each runs, what it depends on, where its result lies."""

from collections.abc import Callable
from pathlib import Path

from rsl_tbptt.tools.platforms import Training, load_platform
from scripts.pipeline.experiments import Experiment, Policy
from scripts.pipeline.run import Stage

CHECKPOINT = "{checkpoint}"
"""Stands in a policy's overrides where the checkpoint goes that it starts from."""


def pipeline_stages(experiment: Experiment, folder: Path, device: str) -> list[Stage]:
    """Lay out an experiment: all policies, the video and the export.

    Args:
        experiment: Policies, sizes and seeds.
        folder: Run folder.
        device: Device of all stages.

    Returns:
        The stages in the order they run.
    """
    return [
        *policy_stages(experiment, folder, device),
        _video(experiment, folder, device),
        _export(experiment, folder, device),
    ]


def policy_stages(experiment: Experiment, folder: Path, device: str) -> list[Stage]:
    """Lay out the training of all policies, then their evaluation; as :func:`pipeline_stages`."""
    return [
        *(_training(experiment, name, folder, device) for name in experiment.policies),
        *(evaluation_stage(experiment, name, folder, device) for name in experiment.evaluated),
    ]


def train_command(
    experiment: Experiment,
    policy: Policy,
    *,
    run_name: str,
    device: str,
    checkpoint: str | None = None,
) -> list[str]:
    """Write the platform's own command that trains one policy.

    Args:
        experiment: Platform, task and number of environments.
        policy: Agent, iterations, seed and overrides, which may say where the checkpoint goes.
        run_name: Suffix of the log folder.
        device: Device of simulation and learning, for example ``cpu`` or ``cuda:0``.
        checkpoint: File of the policy to start from, or None to train from scratch.

    Returns:
        The command as a user would type it.
    """
    overrides = [o.replace(CHECKPOINT, checkpoint or CHECKPOINT) for o in policy.overrides]
    training = Training(
        task=experiment.task,
        agent=policy.agent,
        num_envs=experiment.num_envs_of(policy),
        iterations=policy.iterations,
        seed=policy.seed,
        run_name=run_name,
        checkpoint=Path(checkpoint) if checkpoint and overrides == policy.overrides else None,
    )
    command = load_platform(experiment.platform).train_command(training, device=device)
    return [*command, *policy.task_overrides, *overrides]


def find_checkpoint(folder: Path, run_name: str, iteration: int, since: float = 0.0) -> Path:
    """Find the checkpoint that a finished training left; all platforms log alike.

    Isaac Lab ends an interrupted training with success, so the last iteration's checkpoint is the
    proof that it ran to its end.

    Args:
        folder: Working directory of the training.
        run_name: Suffix of the log folder.
        iteration: Number of the last iteration, counted from 0.
        since: Ignore older files. In seconds since the epoch.

    Returns:
        Path of the newest one.

    Raises:
        FileNotFoundError: If there is none.
    """
    time = "????-??-??_??-??-??"  # not *, which also takes the beginning of another run's name
    pattern = f"logs/rsl_rl/*/{time}_{run_name}/model_{iteration}.pt"
    found = [path for path in folder.glob(pattern) if path.stat().st_mtime >= since]
    if not found:
        raise FileNotFoundError(
            f"{pattern} was not found in {folder}: the training did not reach its last iteration."
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def evaluation_stage(
    experiment: Experiment, name: str, folder: Path, device: str, after: int | None = None
) -> Stage:
    """Describe the evaluation of a policy, or of one with something taken from it.

    With ``after`` it is the policy as it was after so many iterations.
    """
    evaluated = name if after is None else early(name, after)
    output = Path("evaluation") / f"{evaluated}.json"
    settings = experiment.evaluation.model_dump()
    ablation = experiment.ablations.get(name)
    policy = name if ablation is None else ablation.policy
    trained = experiment.policies[policy]
    if overrides := [*trained.task_overrides, *([ablation.override] if ablation else [])]:
        settings["overrides"] = overrides
    task = load_platform(experiment.platform).task_id(experiment.task, trained.agent)
    where = {"platform": experiment.platform, "task": task, "device": device, "output": output}

    def command(outputs: dict[str, str]) -> list[str]:
        last = Path(outputs[policy])
        checkpoint = last if after is None else last.with_name(f"model_{after - 1}.pt")
        return _tool("evaluate", checkpoint=checkpoint, **where, **settings)

    return Stage(
        name=f"evaluate-{evaluated}",
        needs=(policy,),
        command=command,
        output=_written(folder / output),
    )


def early(name: str, after: int) -> str:
    """Name a policy as it was after so many iterations."""
    return f"{name}-after-{after}"


def _training(experiment: Experiment, name: str, folder: Path, device: str) -> Stage:
    """Describe the training of a policy, which may read an earlier one's checkpoint."""
    policy = experiment.policies[name]
    needs = () if policy.starts_from is None else (policy.starts_from,)

    def command(outputs: dict[str, str]) -> list[str]:
        start = outputs[policy.starts_from] if policy.starts_from else None
        return train_command(experiment, policy, run_name=name, device=device, checkpoint=start)

    return Stage(
        name=name,
        needs=needs,
        command=command,
        output=lambda since: find_checkpoint(folder, name, policy.iterations - 1, since),
    )


def _video(experiment: Experiment, folder: Path, device: str) -> Stage:
    """Describe the video of the policies of the task as it is, in training order."""
    options = {"video": "video.webp", "device": device}
    shown = [name for name, policy in experiment.policies.items() if not policy.task_overrides]

    def command(outputs: dict[str, str]) -> list[str]:
        return _tool("play", **options) + [f"--checkpoint={outputs[name]}" for name in shown]

    return Stage(
        name="video",
        needs=tuple(shown),
        command=command,
        output=_written(folder / options["video"]),
    )


def _export(experiment: Experiment, folder: Path, device: str) -> Stage:
    """Describe the export of the experiment's choice."""
    policy = experiment.export.policy
    options = experiment.export.model_dump(exclude={"policy"}) | {"output": "exported"}
    return Stage(
        name="export",
        needs=(policy,),
        command=lambda outputs: _tool("export", checkpoint=outputs[policy], **options),
        output=_written(folder / "exported" / "parity.json"),
    )


def _tool(command: str, **options: object) -> list[str]:
    """Write a command of this package; an option may have several values."""
    words = ["rsl-tbptt", command]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        words += [option, *value] if isinstance(value, list) else [f"{option}={value}"]
    return words


def _written(path: Path) -> Callable[[float], Path]:
    """Return a function that returns a path if it was written since a time."""

    def output(since: float) -> Path:
        if not path.exists() or path.stat().st_mtime < since:
            raise FileNotFoundError(f"{path} was not written.")
        return path

    return output
