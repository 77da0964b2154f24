"""The learning curves of several seeds as one figure."""

from pathlib import Path
from statistics import fmean

from scripts.figure_style import drawn_svg
from scripts.pipeline.figures import colours
from scripts.pipeline.learning import Learning
from scripts.pipeline.study import Study

Band = tuple[list[int], list[float], list[float], list[float]]


def save_learning(learnings: list[Learning], teacher: str, study: Study, path: Path) -> None:
    """Draw every policy's mean over the seeds, in a band from the worst to the best seed.

    Args:
        learnings: Policies of all seeds.
        teacher: Name of the teacher, whose final return is the measure.
        study: What is judged.
        path: SVG file; its folder is created.
    """
    policies: dict[str, list[Learning]] = {}
    for learning in learnings:
        policies.setdefault(learning.policy, []).append(learning)
    path.parent.mkdir(parents=True, exist_ok=True)
    with drawn_svg(path, figsize=(9, 4)) as axes:
        colour = colours(policies)
        for name, seeds in policies.items():
            steps, mean, low, high = band([learning.curve for learning in seeds])
            axes.plot(steps, mean, color=colour[name], label=label(name, seeds[0]))
            axes.fill_between(steps, low, high, color=colour[name], alpha=0.2, lw=0)
        finals = [learning.final_return for learning in policies[teacher]]
        goal = study.min_share_of_teacher * fmean(finals)
        title = f"{study.min_share_of_teacher:.0%} of the {teacher}"
        axes.axhline(goal, color="0.4", lw=1, ls="--", label=title)
        axes.set(
            title=f"Return per episode in training, mean and range of {len(study.seeds)} seeds",
            xlabel="environment steps of this training, in millions",
            xlim=(0, None),
        )
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1e6:g}")
        axes.legend(frameon=False, loc="lower right")


def band(curves: list[dict[int, float]]) -> Band:
    """Summarise curves where all of them have a value.

    Args:
        curves: Returns by environment steps, one curve per seed.

    Returns:
        Steps, means, smallest and largest returns.
    """
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = [[curve[step] for curve in curves] for step in steps]
    means = [fmean(at_step) for at_step in values]
    return steps, means, [min(at_step) for at_step in values], [max(at_step) for at_step in values]


def label(name: str, learning: Learning) -> str:
    """Name a curve; steps before it, which it does not show, come with it."""
    earlier = learning.num_earlier_steps
    return f"{name}, after {earlier / 1e6:.2f} million as a student" if earlier else name
