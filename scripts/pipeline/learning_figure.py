"""The learning curves of several seeds as one figure."""

from pathlib import Path
from statistics import fmean

from scripts.figure_style import drawn_svg
from scripts.pipeline.figures import colours
from scripts.pipeline.learning import KEPT, Curve, Learning

Band = tuple[list[int], list[float], list[float], list[float]]


def save_learning(learnings: list[Learning], teacher: str, path: Path) -> None:
    """Draw every policy's mean over the seeds, in a band from the worst to the best seed.

    Args:
        learnings: Policies of all seeds.
        teacher: Name of the teacher, whose final return is the measure.
        path: SVG file; its folder is created.
    """
    names = dict.fromkeys(learning.policy for learning in learnings)
    policies = {name: [one for one in learnings if one.policy == name] for name in names}
    path.parent.mkdir(parents=True, exist_ok=True)
    with drawn_svg(path, figsize=(9, 4)) as axes:
        colour = colours(policies)
        for name, seeds in policies.items():
            iterations, mean, low, high = band([learning.curve for learning in seeds])
            steps = [done * seeds[0].steps_per_iteration for done in iterations]
            axes.plot(steps, mean, color=colour[name], label=label(name, seeds[0]))
            axes.fill_between(steps, low, high, color=colour[name], alpha=0.2, lw=0)
        goal = KEPT * fmean(learning.final_return for learning in policies[teacher])
        axes.axhline(goal, color="0.4", lw=1, ls="--", label=f"{KEPT:.0%} of the {teacher}")
        axes.set(
            title=f"Return in training, mean and range of {len(policies[teacher])} seeds",
            xlabel="environment steps of this training, in millions",
            xlim=(0, None),
        )
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1e6:g}")
        axes.legend(frameon=False, loc="lower right")


def band(curves: list[Curve]) -> Band:
    """Summarise curves where all of them have a value.

    Args:
        curves: Returns by iterations done, one curve per seed.

    Returns:
        Iterations, means, smallest and largest returns.
    """
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = [[curve[done] for curve in curves] for done in shared]
    return shared, [*map(fmean, values)], [*map(min, values)], [*map(max, values)]


def label(name: str, learning: Learning) -> str:
    """Name a curve; steps before it, which it does not show, come with it."""
    earlier = learning.num_earlier_steps
    return f"{name}, after {earlier / 1e6:.2f} million as a student" if earlier else name
