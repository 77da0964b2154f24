"""Write results.json and one self-contained report.html into a finished run folder."""

import argparse
from pathlib import Path
from typing import Any

from rsl_tbptt.files import complete, write_json
from rsl_tbptt.machine import machine, versions
from rsl_tbptt.platforms import load_platform
from rsl_tbptt.run_doctor import read_curves
from scripts.pipeline.figures import data_uri, plot_curves, plot_returns
from scripts.pipeline.presets import DEMO, Preset, default_run, load_preset
from scripts.pipeline.progress import clock
from scripts.pipeline.results import collect, format_share, read_evaluation
from scripts.pipeline.run_folder import Marker, RunFolder
from scripts.templates import fill

TEMPLATE = Path(__file__).with_name("report.html.j2")


def main() -> None:
    """Read a finished run folder and write its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", default=default_run(DEMO), help="run folder")
    parser.add_argument("--config", type=Path, default=DEMO, help="the run's preset")
    parser.add_argument("--device", default="cpu", help="the device that the run used")
    args = parser.parse_args()
    run = RunFolder(args.run)
    preset = load_preset(args.config)
    markers = finished_stages(run, preset)
    results = collect(run.path, preset) | {
        "stages": {
            name: {"seconds": marker.seconds, "peak_memory_gb": marker.peak_memory_gb}
            for name, marker in markers.items()
        },
        "versions": versions(load_platform(preset.platform).PACKAGES),
        "machine": machine(args.device),
    }
    write_json(run.path / "results.json", results)
    with complete(run.path / "report.html") as unfinished:
        unfinished.write_text(render(run, preset, results, markers), encoding="utf-8")
    print(f"wrote {run.path / 'report.html'}")


def finished_stages(run: RunFolder, preset: Preset) -> dict[str, Marker]:
    """Return the markers of all stages but the report, oldest first.

    Args:
        run: The run folder.
        preset: The run's preset.

    Returns:
        Markers by stage.

    Raises:
        FileNotFoundError: If one is not finished.
    """
    evaluations = (f"evaluate-{name}" for name in preset.evaluated)
    names = {*preset.policies, *evaluations, "video", "export"}
    markers = {name: marker for name in names if (marker := run.marker(name)) is not None}
    missing = sorted(names - markers.keys())
    if missing:
        raise FileNotFoundError(
            f"{run.path} lacks the stages {missing}: run `python -m scripts.pipeline` for it first."
        )
    return dict(sorted(markers.items(), key=lambda item: item[1].finished_at))


def render(
    run: RunFolder, preset: Preset, results: dict[str, Any], markers: dict[str, Marker]
) -> str:
    """Fill the template.

    Args:
        run: The run folder.
        preset: The run's preset.
        results: What goes into results.json.
        markers: Markers of the finished stages.

    Returns:
        HTML that loads nothing: images are data URIs, style is inline.
    """
    evaluations = {name: read_evaluation(run.path, name) for name in preset.evaluated}
    curves = {
        name: read_curves((run.path / markers[name].output).parent) for name in preset.policies
    }
    return fill(
        TEMPLATE,
        results=results,
        video=data_uri("image/webp", (run.path / markers["video"].output).read_bytes()),
        curves=plot_curves(curves),
        returns=plot_returns(
            {name: evaluation["returns"] for name, evaluation in evaluations.items()},
            {name: row["confidence_interval"] for name, row in results["policies"].items()},
        ),
        markers=markers,
        total=clock(sum(marker.seconds for marker in markers.values())),
        preset=preset,
        format_share=format_share,
        clock=clock,
    )
