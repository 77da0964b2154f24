"""Train a preset's policies with several seeds, evaluate them, and compare how they learned.

Writes table.md into the run folder and a figure of the learning curves. Stages that are finished
with the same settings are not run again, so an interrupted run goes on where it was.
"""

import argparse
import time
from pathlib import Path

from scripts.pipeline.conductor import Conductor, cost, exit_status, run_parser
from scripts.pipeline.presets import default_run
from scripts.pipeline.run_folder import RunFolder
from scripts.pipeline.stages import policy_stages
from scripts.pipeline.study import load_study, one_seed_each

FIGURE = Path("docs") / "figures" / "learning_curves.svg"


def main() -> int:
    """Run a study.

    Returns:
        The exit status.
    """
    parser = run_parser("python -m scripts.pipeline.curves", __doc__)
    parser.add_argument("--figure", type=Path, default=FIGURE, help="SVG file to write")
    args = parser.parse_args()
    return exit_status(lambda: run_study(args))


def run_study(args: argparse.Namespace) -> None:
    """Run all stages of a study, print the table and write the figure.

    Args:
        args: The command line.
    """
    start = time.monotonic()
    study, preset = load_study(args.config)
    run = RunFolder(args.output or default_run(args.config))
    stages = policy_stages(run, one_seed_each(preset, study.seeds), args.device)
    markers = Conductor(run, args.device).run_all(stages)
    # Imported here because they take seconds, which --help and the first stage need not wait for.
    from scripts.pipeline.learning import compare, format_markdown, read_learnings
    from scripts.pipeline.learning_figure import save_learning

    learnings = read_learnings(run.path, preset, study.seeds, markers)
    comparisons = compare(learnings, preset.teacher, study)
    table = format_markdown(comparisons, preset.teacher, study)
    (run.path / "table.md").write_text(table, encoding="utf-8")
    save_learning(learnings, preset.teacher, study, args.figure)
    print(f"\n{table}\nfigure: {args.figure}\n{cost(markers, time.monotonic() - start)}")


if __name__ == "__main__":
    raise SystemExit(main())
