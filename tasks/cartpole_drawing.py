"""How an episode of a cartpole looks, of any simulator: for the animation of a report."""

import math

from matplotlib.axes import Axes

NUM_JOINTS = 2
"""The slider first, then the hinge."""
POLE_LENGTH = 0.6
"""Drawn length in m: the drawing shows motion, not scale."""
FALLEN = "#d55e00"


class CartpoleDrawing:
    """One cartpole in the axes of a figure, moved from step to step."""

    def __init__(self, axes: Axes, robot: dict[str, list[float]], title: str, colour: str) -> None:
        """Prepare the axes for an episode of joint positions."""
        self._cart, self._pole = robot.values()
        axes.set(xlim=(-1.7, 1.7), ylim=(-0.2, 0.85), aspect="equal", title=title)
        axes.axis("off")
        axes.axhline(0.0, color="0.7", lw=1, zorder=0)
        (self._cart_line,) = axes.plot([], [], color=colour, lw=9, solid_capstyle="butt")
        (self._pole_line,) = axes.plot([], [], color="0.2", lw=3, solid_capstyle="round")
        self._clock = axes.text(-1.65, 0.75, "", fontsize=8, color="0.4")

    def draw(self, step: int, num_steps: int, step_seconds: float) -> None:
        """Move to a step; after a fall the last position stays."""
        last = len(self._cart) - 1
        cart, angle = self._cart[min(step, last)], self._pole[min(step, last)]
        tip = (cart + POLE_LENGTH * math.sin(angle), POLE_LENGTH * math.cos(angle))
        self._cart_line.set_data([cart - 0.15, cart + 0.15], [0, 0])
        self._pole_line.set_data([cart, tip[0]], [0, tip[1]])
        fallen = step > last and len(self._cart) < num_steps
        self._pole_line.set_color(FALLEN if fallen else "0.2")
        seconds = min(step, last) * step_seconds
        self._clock.set_text(f"ended after {seconds:.1f} s" if fallen else f"{seconds:.1f} s")
