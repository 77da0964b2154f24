"""The demo's stages: what each runs, what it depends on, where its result lies."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from _isaaclab import find_checkpoint, train_command
from _machine import versions
from _preset import POLICIES, Evaluation, Export, Preset, Training
from _stages import RunFolder, Stage

SCRIPTS = Path(__file__).resolve().parent
REPORT_SECONDS = 25.0


def demo_stages(run: RunFolder, preset: Preset, config: Path, device: str) -> list[Stage]:
    """Lay out the demo.

    Args:
        run: The run folder.
        preset: Sizes and seeds.
        config: The file that the preset came from.
        device: Device of all stages.

    Returns:
        The stages in the order they run.
    """
    common = {"task": preset.task, "device": device, "versions": versions()}
    return [
        *(training_stage(run, preset, name, device, common) for name in POLICIES),
        *(evaluation_stage(run, preset, name, device, common) for name in POLICIES),
        export_stage(run, preset, common),
        report_stage(run, preset, config, device, common),
    ]


def training_stage(
    run: RunFolder, preset: Preset, name: str, device: str, common: dict[str, object]
) -> Stage:
    """Describe the training of a policy; students read the teacher's checkpoint."""
    training = getattr(preset, name)
    needs = () if name == "teacher" else ("teacher",)

    def command(outputs: dict[str, str]) -> list[str]:
        return train_command(
            training,
            task=preset.task,
            num_envs=preset.num_envs,
            run_name=name,
            device=device,
            checkpoint=outputs.get("teacher"),
        )

    return Stage(
        name=name,
        needs=needs,
        settings=common | {"num_envs": preset.num_envs} | _without_estimate(training),
        command=command,
        output=lambda since: find_checkpoint(run.path, name, training.iterations - 1, since),
        expected_seconds=training.expected_seconds,
    )


def evaluation_stage(
    run: RunFolder, preset: Preset, name: str, device: str, common: dict[str, object]
) -> Stage:
    """Describe the evaluation of a policy."""
    evaluation = preset.evaluation
    output = Path("evaluation") / f"{name}.json"
    options = [
        f"--task={preset.task}",
        f"--episodes={evaluation.episodes}",
        f"--seed={evaluation.seed}",
        f"--recorded-envs={evaluation.recorded_envs}",
        f"--device={device}",
        f"--output={output}",
    ]
    return Stage(
        name=f"evaluate-{name}",
        needs=(name,),
        settings=common | _without_estimate(evaluation),
        command=lambda outputs: script(run, "evaluate", f"--checkpoint={outputs[name]}", *options),
        output=lambda since: written(run.path / output, since),
        expected_seconds=evaluation.expected_seconds,
    )


def export_stage(run: RunFolder, preset: Preset, common: dict[str, object]) -> Stage:
    """Describe the export of the student."""
    export = preset.export
    options = [
        f"--parity-steps={export.parity_steps}",
        f"--tolerance={export.tolerance}",
        f"--seed={export.seed}",
        "--output=exported",
    ]
    return Stage(
        name="export",
        needs=("student",),
        settings=common | _without_estimate(export),
        command=lambda outputs: script(
            run, "export", f"--checkpoint={outputs['student']}", *options
        ),
        output=lambda since: written(run.path / "exported" / "parity.json", since),
        expected_seconds=export.expected_seconds,
    )


def report_stage(
    run: RunFolder, preset: Preset, config: Path, device: str, common: dict[str, object]
) -> Stage:
    """Describe the report."""
    options = [".", f"--config={os.path.relpath(config, run.path)}", f"--device={device}"]
    return Stage(
        name="report",
        needs=(*(f"evaluate-{name}" for name in POLICIES), "export"),
        settings=common | {"min_share_of_teacher": preset.min_share_of_teacher},
        command=lambda _outputs: script(run, "report", *options),
        output=lambda since: written(run.path / "report.html", since),
        expected_seconds=REPORT_SECONDS,
    )


def _without_estimate(section: Training | Evaluation | Export) -> dict[str, object]:
    """Return a section's settings; the guessed duration changes no result."""
    settings = asdict(section)
    settings.pop("expected_seconds")
    return settings


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
