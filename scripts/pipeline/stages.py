"""A preset's stages: what each runs, what it depends on, where its result lies."""

import os
from pathlib import Path

from rsl_tbptt.machine import versions
from rsl_tbptt.platforms import load_platform
from scripts.pipeline.presets import Preset, Section
from scripts.pipeline.run_folder import RunFolder, Stage
from scripts.pipeline.training import find_checkpoint, train_command

REPORT = Path(__file__).resolve().parents[1] / "report.py"
REPORT_SECONDS = 25.0
VIDEO_SECONDS = 100.0


def pipeline_stages(run: RunFolder, preset: Preset, config: Path, device: str) -> list[Stage]:
    """Lay out a preset: all policies, the video, the export and the report.

    Args:
        run: The run folder.
        preset: Policies, sizes and seeds.
        config: The file that the preset came from.
        device: Device of all stages.

    Returns:
        The stages in the order they run.
    """
    return [
        *policy_stages(run, preset, device),
        video_stage(run, preset, device),
        export_stage(run, preset, device),
        report_stage(run, preset, config, device),
    ]


def policy_stages(run: RunFolder, preset: Preset, device: str) -> list[Stage]:
    """Lay out the training of all policies, then their evaluation.

    Args:
        run: The run folder.
        preset: Policies, sizes and seeds.
        device: Device of all stages.

    Returns:
        The stages in the order they run.
    """
    return [
        *(training_stage(run, preset, name, device) for name in preset.policies),
        *(evaluation_stage(run, preset, name, device) for name in preset.evaluated),
    ]


def training_stage(run: RunFolder, preset: Preset, name: str, device: str) -> Stage:
    """Describe the training of a policy, which may read an earlier one's checkpoint."""
    policy = preset.policies[name]
    needs = () if policy.starts_from is None else (policy.starts_from,)

    def command(outputs: dict[str, str]) -> list[str]:
        start = outputs[policy.starts_from] if policy.starts_from else None
        return train_command(preset, policy, run_name=name, device=device, checkpoint=start)

    return Stage(
        name=name,
        needs=needs,
        settings=_common(preset, device)
        | _without(policy, "expected_seconds", "title", "starts_from")
        | {"num_envs": preset.num_envs_of(policy)},
        command=command,
        output=lambda since: find_checkpoint(run.path, name, policy.iterations - 1, since),
        expected_seconds=policy.expected_seconds,
    )


def evaluation_stage(
    run: RunFolder, preset: Preset, name: str, device: str, after: int | None = None
) -> Stage:
    """Describe the evaluation of a policy, or of one with something taken from it.

    With ``after`` it is the policy as it was after so many iterations.
    """
    evaluation = preset.evaluation
    evaluated = name if after is None else early(name, after)
    output = Path("evaluation") / f"{evaluated}.json"
    settings = _without(evaluation, "expected_seconds")
    ablation = preset.ablations.get(name)
    policy = name if ablation is None else ablation.policy
    trained = preset.policies[policy]
    if overrides := [*trained.task_overrides, *([ablation.override] if ablation else [])]:
        settings["overrides"] = overrides
    task = load_platform(preset.platform).task_id(preset.task, trained.agent)
    where = {"platform": preset.platform, "task": task, "device": device, "output": output}

    def command(outputs: dict[str, str]) -> list[str]:
        last = Path(outputs[policy])
        checkpoint = last if after is None else last.with_name(f"model_{after - 1}.pt")
        return tool("evaluate", checkpoint=checkpoint, **where, **settings)

    return Stage(
        name=f"evaluate-{evaluated}",
        needs=(policy,),
        settings=_common(preset, device) | settings,
        command=command,
        output=lambda since: written(run.path / output, since),
        expected_seconds=evaluation.expected_seconds,
    )


def early(name: str, after: int) -> str:
    """Name a policy as it was after so many iterations."""
    return f"{name}-after-{after}"


def video_stage(run: RunFolder, preset: Preset, device: str) -> Stage:
    """Describe the video of the policies of the task as it is, in training order."""
    options = {"video": "video.webp", "device": device}
    shown = [name for name, policy in preset.policies.items() if not policy.task_overrides]

    def command(outputs: dict[str, str]) -> list[str]:
        return tool("play", **options) + [f"--checkpoint={outputs[name]}" for name in shown]

    return Stage(
        name="video",
        needs=tuple(shown),
        settings=_common(preset, device) | options,
        command=command,
        output=lambda since: written(run.path / options["video"], since),
        expected_seconds=VIDEO_SECONDS,
    )


def export_stage(run: RunFolder, preset: Preset, device: str) -> Stage:
    """Describe the export of the preset's choice."""
    export = preset.export
    options = _without(export, "expected_seconds", "policy") | {"output": "exported"}
    return Stage(
        name="export",
        needs=(export.policy,),
        settings=_common(preset, device) | _without(export, "expected_seconds"),
        command=lambda outputs: tool("export", checkpoint=outputs[export.policy], **options),
        output=lambda since: written(run.path / "exported" / "parity.json", since),
        expected_seconds=export.expected_seconds,
    )


def report_stage(run: RunFolder, preset: Preset, config: Path, device: str) -> Stage:
    """Describe the report."""
    options = [".", f"--config={os.path.relpath(config, run.path)}", f"--device={device}"]
    texts = {
        "heading": preset.heading,
        "summary": preset.summary,
        "titles": [row.title for row in preset.evaluated.values()],
        "verdicts": [verdict.model_dump() for verdict in preset.verdicts],
    }
    return Stage(
        name="report",
        needs=(*(f"evaluate-{name}" for name in preset.evaluated), "video", "export"),
        settings=_common(preset, device) | texts,
        command=lambda _outputs: ["python", os.path.relpath(REPORT, run.path), *options],
        output=lambda since: written(run.path / "report.html", since),
        expected_seconds=REPORT_SECONDS,
    )


def _common(preset: Preset, device: str) -> dict[str, object]:
    """Return what every stage's result depends on."""
    packages = load_platform(preset.platform).PACKAGES
    return {"task": preset.task, "device": device, "versions": versions(packages)}


def _without(section: Section, *names: str) -> dict[str, object]:
    """Return a section's settings but for those that change no result."""
    return section.model_dump(exclude=set(names))


def tool(command: str, **options: object) -> list[str]:
    """Write a command of this package; an option may have several values."""
    words = ["rsl-tbptt", command]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        words += [option, *value] if isinstance(value, list) else [f"{option}={value}"]
    return words


def written(path: Path, since: float) -> Path:
    """Return a path that was written since a time.

    Raises:
        FileNotFoundError: If it was not.
    """
    if not path.exists() or path.stat().st_mtime < since:
        raise FileNotFoundError(f"{path} was not written.")
    return path
