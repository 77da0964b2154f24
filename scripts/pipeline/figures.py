"""Figures of the report: learning curves and the video, as data URIs."""

import base64
import io
import math
from collections.abc import Iterable
from itertools import cycle

from scripts.figure_style import PALETTE, drawn_svg

Curve = tuple[list[int], list[float]]


def colours(names: Iterable[str]) -> dict[str, str]:
    """Give each policy its colour, by its place among the others."""
    return dict(zip(names, cycle(PALETTE), strict=False))


def plot_curves(curves: dict[str, dict[str, Curve]]) -> str:
    """Draw the learning curves.

    Args:
        curves: For each policy, what :func:`read_curves` returned.

    Returns:
        An SVG image as a data URI.
    """
    image = io.BytesIO()
    with drawn_svg(image, fonttype="path", ncols=2, figsize=(10, 3.4)) as (reward, loss):
        for name, colour in colours(curves).items():
            if "Train/mean_reward" in curves[name]:
                reward.plot(*curves[name]["Train/mean_reward"], color=colour, label=name)
            if "Loss/behavior" in curves[name]:
                loss.semilogy(*curves[name]["Loss/behavior"], color=colour, label=name)
        reward.set(title="Reward per episode in training", xlabel="iteration")
        loss.set(title="Behaviour loss of distilled students", xlabel="iteration")
        for axes in (reward, loss):
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False)
    return data_uri("image/svg+xml", image.getvalue())


def plot_returns(returns: dict[str, list[float]], intervals: dict[str, list[float]]) -> str:
    """Draw every episode's return, with the mean's interval.

    Args:
        returns: Returns of the episodes by policy.
        intervals: Ends of the mean's confidence interval by policy.

    Returns:
        An SVG image as a data URI.
    """
    image = io.BytesIO()
    with drawn_svg(image, fonttype="path", figsize=(10, 2.2)) as axes:
        colour = colours(returns)
        for row, name in enumerate(reversed(list(returns))):
            # Spread vertically in a fixed pattern, so that equal returns remain visible.
            heights = [row + 0.25 * math.sin(37.0 * i) for i in range(len(returns[name]))]
            axes.plot(returns[name], heights, ".", color=colour[name], alpha=0.35, ms=5, mew=0)
            axes.plot(intervals[name], [row, row], color="black", lw=4, solid_capstyle="butt")
        axes.set_yticks(range(len(returns)), list(reversed(list(returns))))
        axes.set(title="Return of each episode; black: 95 % interval of the mean")
        axes.grid(axis="y", visible=False)
    return data_uri("image/svg+xml", image.getvalue())


def data_uri(kind: str, content: bytes) -> str:
    """Write an image into an address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
