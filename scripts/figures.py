"""What all figures have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
from matplotlib import pyplot as plt

PALETTE = ("#0072b2", "#009e73", "#d55e00", "#cc79a7", "#000000")
"""Told apart with any colour vision: Okabe and Ito (2008), Color Universal Design."""
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.hashsalt": "rsl_tbptt",
}


@contextmanager
def drawn_svg(
    target: Path | IO[bytes], *, fonttype: str = "none", **subplots: Any
) -> Iterator[Any]:
    """Give axes to draw on, and write them as SVG.

    Args:
        target: Where to.
        fonttype: ``"none"`` keeps text as text, which is small; ``"path"`` draws it, which looks
            alike everywhere.
        **subplots: Numbers and size, for :func:`matplotlib.pyplot.subplots`.

    Yields:
        What that returns beside the figure.
    """
    with mpl.rc_context({**STYLE, "svg.fonttype": fonttype}):
        figure, axes = plt.subplots(layout="constrained", **subplots)
        yield axes
        figure.savefig(target, format="svg", metadata={"Date": None})
        plt.close(figure)
