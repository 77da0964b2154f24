"""Style and output of all figures."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
from matplotlib import pyplot as plt

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
    "svg.hashsalt": "rsl_tbptt",
}


def policy_styles(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return a label and a colour for each policy, those of ``POLICIES`` for the ones in it."""
    taken = {POLICIES[name][1] for name in names if name in POLICIES}
    free = (colour for colour in PALETTE if colour not in taken)
    return {name: POLICIES.get(name) or (name, next(free)) for name in names}


@contextmanager
def drawn_svg(
    target: Path | IO[bytes], *, fonttype: str = "none", **subplots: Any
) -> Iterator[Any]:
    """Yield axes to draw on, then write them as SVG.

    Args:
        target: File to write to.
        fonttype: ``"none"`` keeps text as text, which is small; ``"path"`` draws it, which looks
            the same everywhere.
        **subplots: Numbers and size, for :func:`matplotlib.pyplot.subplots`.

    Yields:
        The axes that it returns.
    """
    with mpl.rc_context({**STYLE, "svg.fonttype": fonttype}):
        figure, axes = plt.subplots(layout="constrained", **subplots)
        yield axes
        figure.savefig(target, format="svg", metadata={"Date": None})
        plt.close(figure)
