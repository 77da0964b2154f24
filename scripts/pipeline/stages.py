"""The stages of an experiment: their commands, dependencies and results."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from rsl_tbptt.checkpoints.reading import latest_checkpoint
from rsl_tbptt.files import AGENT, read_config
from scripts.pipeline.experiments import REPOSITORY, Experiment
from scripts.pipeline.run import Stage
from scripts.pipeline.training import iterations_left, train_command


def pipeline_stages(experiment: Experiment, device: str) -> list[Stage]:
    """Return all stages of an experiment: its policies, a memory and the export.

    Args:
        experiment: Policies, sizes and seeds.
        device: Device of all stages.

    Returns:
        The stages in the order they run.
    """
    return [
        *policy_stages(experiment, device),
        _memory(experiment, device),
        _export(experiment, device),
    ]


def policy_stages(experiment: Experiment, device: str) -> list[Stage]:
    """Return the stages that train and evaluate the policies; see :func:`pipeline_stages`."""
    evaluations = {n: evaluation_stage(experiment, n, device) for n in experiment.evaluated}
    stages = []
    for name in experiment.policies:
        stages += [_training(experiment, name, device), evaluations.pop(name)]
    return [*stages, *evaluations.values()]


def _training(experiment: Experiment, name: str, device: str) -> Stage:
    """Return the training of a policy, which may read an earlier one's checkpoint.

    Isaac Lab reports success for an interrupted training. So the result is the checkpoint of the
    last iteration, which only a complete training writes.
    """
    policy = experiment.policies[name]
    if policy.run is not None:
        return _published(name, REPOSITORY / policy.run)
    train = partial(train_command, experiment, policy, run_name=name, device=device)
    start = policy.starts_from
    return Stage(
        name=name,
        needs=(start,) if start else (),
        command=lambda outputs: train(checkpoint=outputs[start] if start else None),
        output=f"{_log_folder(name)}/model_{policy.iterations - 1}.pt",
        rest=partial(_rest, experiment, name, device),
    )


def _published(name: str, run: Path) -> Stage:
    """Return the stage that copies the log folder of a policy that was trained before."""
    experiment = read_config(run / AGENT)["experiment_name"]
    copy = f"logs/rsl_rl/{experiment}/2000-01-01_00-00-00_{name}"
    # Without the files' times, since a result has to be newer than its stage's start.
    options = "copy_function=shutil.copyfile, dirs_exist_ok=True"
    code = f"import shutil, sys; shutil.copytree(*sys.argv[1:], {options})"
    return Stage(
        name=name,
        command=lambda _: ["python", "-c", code, str(run), copy],
        output=f"{_log_folder(name)}/model_*.pt",
    )


def _rest(
    experiment: Experiment, name: str, device: str, folder: Path, began_at: float
) -> Stage | None:
    """Return the rest of a training that was broken off; None before its first checkpoint."""
    runs = [run for run in log_folders(folder, name, began_at) if any(run.glob("model_*.pt"))]
    if not runs:
        return None
    newest, policy = latest_checkpoint(runs[-1]), experiment.policies[name]
    rest = policy.model_copy(update={"iterations": iterations_left(policy, newest)})
    train = partial(
        train_command,
        experiment,
        rest,
        run_name=f"{name}_resumed",
        device=device,
        resumed=newest.relative_to(folder),
    )
    return Stage(
        name=name,
        command=lambda outputs: train(checkpoint=outputs.get(policy.starts_from or "")),
        output=f"{_log_folder(f'{name}_resumed')}/model_*.pt",
    )


def log_folders(folder: Path, name: str, began_at: float) -> list[Path]:
    """Return the log folders of a training since it began, those in which it went on included."""
    runs = [*folder.glob(_log_folder(name)), *folder.glob(_log_folder(f"{name}_resumed"))]
    return sorted((r for r in runs if r.stat().st_mtime >= began_at), key=lambda run: run.name)


def _log_folder(name: str) -> str:
    """Return the pattern of a policy's log folder, which begins with the time."""
    started = "????-??-??_??-??-??"  # not *, which also matches the start of another name
    return f"logs/rsl_rl/*/{started}_{name}"


def evaluation_stage(
    experiment: Experiment, name: str, device: str, after: int | None = None
) -> Stage:
    """Return the evaluation of a policy or of an ablation.

    With ``after`` the policy is evaluated as it was after so many iterations.
    """
    evaluated = name if after is None else early(name, after)
    output = f"evaluation/{evaluated}.json"
    ablation = experiment.ablations.get(name)
    policy = name if ablation is None else ablation.policy
    overrides = _task_overrides(experiment, policy) + ([ablation.override] if ablation else [])
    settings = {**experiment.evaluation.model_dump(exclude_none=True), "overrides": overrides}
    settings["trust"] = experiment.policies[policy].trust
    where = {"platform": experiment.platform, "task": _task(experiment, policy)}
    where |= {"device": device, "output": output}

    def command(outputs: dict[str, str]) -> list[str]:
        checkpoint = Path(outputs[policy])
        if after is not None:
            checkpoint = checkpoint.with_name(f"model_{after - 1}.pt")
        return _tool("evaluate", checkpoint=checkpoint, **where, **settings)

    return Stage(name=f"evaluate-{evaluated}", needs=(policy,), command=command, output=output)


def read_evaluation(folder: Path, name: str) -> dict[str, Any]:
    """Read a policy's result in a run folder."""
    return json.loads((folder / "evaluation" / f"{name}.json").read_text(encoding="utf-8"))


def _task(experiment: Experiment, policy: str) -> str:
    """Return the registered id of a policy's task."""
    agent = experiment.policies[policy].agent  # mjlab has one per id
    return f"{experiment.task}-{agent}" if experiment.platform == "mjlab" else experiment.task


def _task_overrides(experiment: Experiment, policy: str) -> list[str]:
    """Return a policy's task overrides; mjlab's `train` takes them as options with dashes."""
    words = experiment.policies[policy].task_overrides
    if experiment.platform != "mjlab":
        return words
    parts = [word.removeprefix("--").partition("=") for word in words]
    return [f"{name.replace('-', '_')}={value}" for name, _, value in parts]


def early(name: str, after: int) -> str:
    """Return the name of a policy as it was after so many iterations."""
    return f"{name}-after-{after}"


def _memory(experiment: Experiment, device: str) -> Stage:
    """Return the measurement of the memory of the policy that is exported."""
    name = experiment.export.policy
    where = {"device": device, "task": _task(experiment, name)}
    where |= {"num_envs": "32", "steps": "100"}  # enough to see how far back it looks
    overrides = _task_overrides(experiment, name)
    return Stage(
        name="memory",
        needs=(name,),
        command=lambda outputs: _tool("memory", outputs[name], **where, overrides=overrides),
        output="stages/memory.log",
    )


def _export(experiment: Experiment, device: str) -> Stage:
    """Return the export of the policy that the experiment names."""
    policy = experiment.export.policy
    options = experiment.export.model_dump(exclude={"policy"})
    options |= {"device": device, "output": "exported", "task": _task(experiment, policy)}
    options["overrides"] = _task_overrides(experiment, policy)
    return Stage(
        name="export",
        needs=(policy,),
        command=lambda outputs: _tool("export", checkpoint=outputs[policy], **options),
        output="exported/policy.json",
    )


def _tool(*command: str, **options: object) -> list[str]:
    """Return a command of this package; an option may have several values, or none."""
    words = ["rsl-tbptt", *command]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if not isinstance(value, list):
            words.append(f"{option}={value}")
        elif value:
            words += [option, *value]
    return words
