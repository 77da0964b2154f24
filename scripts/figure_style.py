"""What all figures have in common."""

from __future__ import annotations

from typing import Any

PALETTE = ("#0072b2", "#009e73", "#d55e00", "#cc79a7")
"""Told apart with any colour vision: Okabe and Ito (2008), Color Universal Design."""
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.hashsalt": "rsl_tbptt",
}
"""For :func:`matplotlib.rc_context`."""
