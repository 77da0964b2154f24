"""A preset's stages: what each runs, what it depends on, where its result lies."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from _machine import versions
from _platform import find_checkpoint, load_platform
from _preset import Evaluation, Export, Policy, Preset
from _stages import RunFolder, Stage

SCRIPTS = Path(__file__).resolve().parent
REPORT_SECONDS = 25.0


def pipeline_stages(run: RunFolder, preset: Preset, config: Path, device: str) -> list[Stage]:
    """Lay out a preset: all policies, the export and the report.

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
        *(evaluation_stage(run, preset, name, device) for name in preset.policies),
    ]


def training_stage(run: RunFolder, preset: Preset, name: str, device: str) -> Stage:
    """Describe the training of a policy, which may read an earlier one's checkpoint."""
    policy = preset.policies[name]
    needs = () if policy.starts_from is None else (policy.starts_from,)

    def command(outputs: dict[str, str]) -> list[str]:
        return load_platform(preset.platform).train_command(
            policy,
            task=preset.task,
            num_envs=preset.num_envs,
            run_name=name,
            device=device,
            checkpoint=outputs[policy.starts_from] if policy.starts_from else None,
        )

    return Stage(
        name=name,
        needs=needs,
        settings=_common(preset, device)
        | {"num_envs": preset.num_envs}
        | _without(policy, "expected_seconds", "title", "starts_from"),
        command=command,
        output=lambda since: find_checkpoint(run.path, name, policy.iterations - 1, since),
        expected_seconds=policy.expected_seconds,
    )


def evaluation_stage(run: RunFolder, preset: Preset, name: str, device: str) -> Stage:
    """Describe the evaluation of a policy."""
    evaluation = preset.evaluation
    task = load_platform(preset.platform).task_id(preset.task, preset.policies[name].agent)
    output = Path("evaluation") / f"{name}.json"
    options = [
        f"--platform={preset.platform}",
        f"--task={task}",
        f"--episodes={evaluation.episodes}",
        f"--seed={evaluation.seed}",
        f"--recorded-envs={evaluation.recorded_envs}",
        f"--device={device}",
        f"--output={output}",
    ]
    return Stage(
        name=f"evaluate-{name}",
        needs=(name,),
        settings=_common(preset, device) | _without(evaluation, "expected_seconds"),
        command=lambda outputs: script(run, "evaluate", f"--checkpoint={outputs[name]}", *options),
        output=lambda since: written(run.path / output, since),
        expected_seconds=evaluation.expected_seconds,
    )


def export_stage(run: RunFolder, preset: Preset, device: str) -> Stage:
    """Describe the export of the preset's choice."""
    export = preset.export
    options = [
        f"--parity-steps={export.parity_steps}",
        f"--tolerance={export.tolerance}",
        f"--seed={export.seed}",
        "--output=exported",
    ]
    return Stage(
        name="export",
        needs=(export.policy,),
        settings=_common(preset, device) | _without(export, "expected_seconds"),
        command=lambda outputs: script(
            run, "export", f"--checkpoint={outputs[export.policy]}", *options
        ),
        output=lambda since: written(run.path / "exported" / "parity.json", since),
        expected_seconds=export.expected_seconds,
    )


def report_stage(run: RunFolder, preset: Preset, config: Path, device: str) -> Stage:
    """Describe the report."""
    options = [".", f"--config={os.path.relpath(config, run.path)}", f"--device={device}"]
    texts = {
        "heading": preset.heading,
        "summary": preset.summary,
        "titles": [policy.title for policy in preset.policies.values()],
        "verdicts": [asdict(verdict) for verdict in preset.verdicts],
    }
    return Stage(
        name="report",
        needs=(*(f"evaluate-{name}" for name in preset.policies), "export"),
        settings=_common(preset, device) | texts,
        command=lambda _outputs: script(run, "report", *options),
        output=lambda since: written(run.path / "report.html", since),
        expected_seconds=REPORT_SECONDS,
    )


def _common(preset: Preset, device: str) -> dict[str, object]:
    """Return what every stage's result depends on."""
    packages = load_platform(preset.platform).PACKAGES
    return {"task": preset.task, "device": device, "versions": versions(packages)}


def _without(section: Policy | Evaluation | Export, *names: str) -> dict[str, object]:
    """Return a section's settings but for those that change no result."""
    return {key: value for key, value in asdict(section).items() if key not in names}


def script(run: RunFolder, name: str, *options: str) -> list[str]:
    """Write the command for one of this repository's scripts, run in the run folder."""
    return ["python", os.path.relpath(SCRIPTS / f"{name}.py", run.path), *options]


def written(path: Path, since: float) -> Path:
    """Return a path that was written since a time.

    Raises:
        FileNotFoundError: If it was not.
    """
    if not path.exists() or path.stat().st_mtime < since:
        raise FileNotFoundError(f"{path} was not written.")
    return path
