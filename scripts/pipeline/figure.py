"""Figures of how policies learned: of the seeds of a sweep, and of a single experiment."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from rsl_tbptt.tools.simulate.evaluate import mean_and_interval
from scripts.pipeline.learning import KEPT, Curve, Learning, Row, compare

BLUE, GREEN, VERMILION, PURPLE = "#0072b2", "#009e73", "#d55e00", "#cc79a7"
BLACK, ORANGE, SKY = "#000000", "#e69f00", "#56b4e9"
PALETTE = (BLUE, GREEN, VERMILION, PURPLE, BLACK, ORANGE, SKY)
"""Colours for any colour vision: Okabe and Ito (2008), Color Universal Design."""
POLICIES = {
    "teacher": ("teacher", BLACK),
    "student": ("student of rsl_tbptt (this)", BLUE),
    "rsl_rl": ("student of rsl_rl", VERMILION),
    "rsl_rl_tuned": ("student of rsl_rl, tuned", ORANGE),
    "latest_rollout": ("student without replay buffer", GREEN),
    "memoryless": ("student without memory", PURPLE),
}
"""Label and colour, in every figure, of policies by their names in ``configs/``."""
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.fonttype": "none",  # text stays text, which is small
    "svg.hashsalt": "rsl_tbptt",
}


def policy_styles(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return a label and a colour for each policy, those of ``POLICIES`` for the ones in it."""
    taken = {POLICIES[name][1] for name in names if name in POLICIES}
    # With more policies than colours, colours repeat.
    free = cycle([colour for colour in PALETTE if colour not in taken] or PALETTE)
    return {name: POLICIES.get(name) or (name, next(free)) for name in names}


@contextmanager
def drawn(path: Path) -> Iterator[Any]:
    """Provide the axes of a figure, and write it to an SVG file, whose folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(layout="constrained", figsize=(9, 4))
        yield axes
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)


def save_figure(learnings: list[Learning], teacher: str, path: Path) -> None:
    """Draw every policy's mean over the seeds, in a band from the worst to the best seed.

    Args:
        learnings: Policies of all seeds.
        teacher: Name of the teacher, whose final return is drawn as the goal.
        path: SVG file.
    """
    names = dict.fromkeys(learning.policy for learning in learnings)
    policies = {name: [one for one in learnings if one.policy == name] for name in names}
    with drawn(path) as axes:
        for name, (label, colour) in policy_styles(policies).items():
            seeds = policies[name]
            iterations, mean, low, high = band([learning.curve for learning in seeds])
            steps = [done * seeds[0].steps_per_iteration for done in iterations]
            earlier = seeds[0].num_earlier_steps  # not in the curve
            after = f", after {earlier / 1e6:.2f} million as a student" if earlier else ""
            axes.plot(steps, mean, color=colour, label=label + after)
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0)
        goal = KEPT * fmean(learning.final_return for learning in policies[teacher])
        axes.axhline(goal, color="0.4", lw=1, ls="--", label=f"{KEPT:.0%} of the {teacher}")
        axes.set(
            title=f"Return in training, mean and range of {len(policies[teacher])} seeds",
            xlabel="environment steps of this training, in millions",
            xlim=(0, None),
        )
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1e6:g}")
        axes.legend(frameon=False, loc="lower right")


def save_shares(tasks: Mapping[str, list[Learning]], teacher: str, path: Path) -> None:
    """Draw what each policy reached in each task: means over the seeds with 95 % confidence.

    Args:
        tasks: Policies of all seeds by task, which are drawn in this order.
        teacher: Name of the teacher, in whose return the others are measured.
        path: SVG file.
    """
    shares: dict[str, list[list[float]]] = defaultdict(list)
    for learnings in tasks.values():
        for name, rows in by_policy(learnings, teacher).items():
            shares[name].append([row["share"] for row in rows])
    with drawn(path) as axes:
        for name, (label, colour) in policy_styles(shares).items():
            mean, low, high = zip(*map(mean_and_interval, shares[name]), strict=True)
            axes.plot([*tasks], mean, marker="o", color=colour, label=label)
            axes.fill_between([*tasks], low, high, color=colour, alpha=0.15, lw=0)
        axes.set(title=f"Share of the {teacher}'s return, mean and 95 % confidence", ylim=(0, None))
        axes.legend(frameon=False)


def save_jitter(learnings: list[Learning], teacher: str, path: Path) -> None:
    """Draw what share of the teacher's return each student keeps over how much its actions shake.

    Args:
        learnings: Policies of all seeds, of a task whose evaluations have a jitter.
        teacher: Name of the teacher.
        path: SVG file.
    """
    found = by_policy(learnings, teacher)
    with drawn(path) as axes:
        for name, (label, colour) in policy_styles(found).items():
            jitter, share = ([row[key] for row in found[name]] for key in ("jitter", "share"))
            axes.scatter(jitter, share, color=colour, label=label)
        axes.set(
            title=f"Share of the {teacher}'s return, one point a seed",
            xlabel="jitter, mean square of the second difference of actions",
            xlim=(0, None),
        )
        axes.legend(frameon=False)


def by_policy(learnings: list[Learning], teacher: str) -> dict[str, list[Row]]:
    """Return the rows of all seeds of each policy but the teacher."""
    found = defaultdict(list)
    for row in compare(learnings, teacher):
        if row["policy"] != teacher:
            found[row["policy"]].append(row)
    return found


def save_returns(curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], path: Path) -> None:
    """Draw the returns of trainings.

    Args:
        curves: Iterations and returns, by label.
        path: SVG file.
    """
    with drawn(path) as axes:
        for colour, (label, curve) in zip(cycle(PALETTE), curves.items(), strict=False):
            axes.plot(*curve, color=colour, label=label)
        axes.set(title="Return in training", xlabel="iterations of this training")
        axes.legend(frameon=False, loc="lower right")


def band(curves: list[Curve]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Summarise curves at the iterations where all have a value.

    Args:
        curves: Returns by iterations done, one curve per seed.

    Returns:
        Iterations, means, smallest and largest returns.
    """
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = [[curve[done] for curve in curves] for done in shared]
    return shared, [*map(fmean, values)], [*map(min, values)], [*map(max, values)]
