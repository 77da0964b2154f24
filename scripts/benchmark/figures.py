"""Figures of the benchmark."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from scripts.figures import BLUE, VERMILION, drawn_svg

OURS, RSL_RL, LIMIT = BLUE, VERMILION, "0.4"
THIS = "rsl_tbptt (this)"
Line = tuple[str, str, list[float]]
"""Label, colour and values."""


def save_figures(results: dict[str, Any], folder: Path) -> dict[str, str]:
    """Draw the results; figures whose rows are missing are left out.

    Returns:
        File names by title.
    """
    saved = {}

    def draw(file: str, title: str, kind: str, rows: str, over: str, **axes: Any) -> None:
        points = [r for r in results[kind] if fnmatchcase(r["name"], rows)]
        if not points:
            return
        places = [point["case"][over] for point in points]
        with drawn_svg(folder / file, figsize=(6, 4)) as drawn:
            for label, colour, values in _lines(file, points):
                drawn.plot(places, values, "o-", color=colour, label=label)
            drawn.set(title=title, **axes)
            drawn.set_xticks(places, [str(place) for place in places])
            drawn.minorticks_off()
            drawn.legend(frameon=False)
        saved[title] = file

    log = {"xscale": "log", "yscale": "log"}
    of = ("speed", "distillation-*-lstm-float32", "num_envs")
    title, label = "Time of an update over the number of environments", "environments"
    draw(
        "time.svg", title, *of, xlabel=f"{label} (distillation, LSTM, float32)", ylabel="ms", **log
    )
    of = ("speed", "ppo-1024-dones-*-lstm-float32", "done_rate")
    title, label = "Times as fast as rsl_rl over the done rate", "done rate (PPO, LSTM, float32)"
    draw("done_rate.svg", title, *of, xlabel=label, ylim=(0, None))
    of = ("memory", "ppo-*", "num_steps")
    title, label = "Memory of the process over the length of the rollout", "steps per rollout"
    draw("memory.svg", title, *of, xlabel=label, ylabel="MB", ylim=(0, None))
    title = "Time of an update over the length of the rollout"
    draw("long.svg", title, "cost", "long-*", "num_steps", xlabel=label, ylabel="ms", **log)
    return saved


def _lines(file: str, points: list[dict[str, Any]]) -> list[Line]:
    if file == "memory.svg":
        peaks = [[point[of]["process_peak"] for point in points] for of in ("other", "ours")]
        return [("rsl_rl", RSL_RL, peaks[0]), (THIS, OURS, peaks[1])]
    if file == "done_rate.svg":
        kinds = (("highest pair", LIMIT, "high"), ("median", OURS, "ratio"))
        kinds = (*kinds, ("lowest pair", LIMIT, "low"))
        return [(label, colour, [point[key] for point in points]) for label, colour, key in kinds]
    names = ("one window", "windows of 32") if file == "long.svg" else ("rsl_rl", THIS)
    times = {key: [1e3 * point[key] for point in points] for key in ("other", "ours", "products")}
    lines = [(names[0], RSL_RL, times["other"]), (names[1], OURS, times["ours"])]
    if file == "time.svg":
        lines.append(("matrix products alone", LIMIT, times["products"]))
    return lines
