"""Style and output of all figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
from matplotlib import pyplot as plt

PALETTE = ("#0072b2", "#009e73", "#d55e00", "#cc79a7", "#000000")
"""Colours for any colour vision: Okabe and Ito (2008), Color Universal Design."""
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
