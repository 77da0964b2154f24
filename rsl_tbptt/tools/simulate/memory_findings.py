"""Say what the result of ``rsl-tbptt memory`` means; the command, reports and the doctor ask."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILE = "memory.json"
"""Name of the result, next to its checkpoint."""
MARK = b'"missed_reset"'
"""Bytes in every such file."""
NEGLIGIBLE = 0.05
"""A memory that moves the action by less than this share of its standard deviation is not used."""
SMALL = 0.25
"""A fault has left the action once it moves it by less than this share: 6 % of its variance."""
MUCH_LONGER = 3
"""A gradient of so many times the steps that the policy looks back could be shorter."""
STAYING = {"outlier": "An outlier in {}", "frozen": "A frozen sensor in {}"}
"""Changes by their key in a group's result, in words."""


def read_memory(folder: Path) -> dict[str, Any] | None:
    """Read the result in a log folder; None if there is none.

    Raises:
        ValueError: If it cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for read in (judge_memory, memory_facts, memory_rows):
            read(found)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"The memory's measurement '{path}' cannot be read ({error!r}), expected what"
            " `rsl-tbptt memory` wrote: measure again, or move the file away."
        ) from error
    return found


def judge_memory(found: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Compare what a memory holds with the training's gradient, and name faults.

    Args:
        found: Result of :func:`rsl_tbptt.tools.simulate.memory.analyse`.

    Returns:
        What the memory holds, and what is wrong with it.
    """
    length, gradient, checkpoint = found["length"], found["gradient_length"], found["checkpoint"]
    furthest = _furthest(found)
    if not (found["units"] or furthest):
        return f"{checkpoint} has no memory", []
    wrong = [*_faults(found)]
    if not furthest:
        wrong.insert(
            0,
            f"The memory is not used, expected an observation to move a later action by"
            f" {NEGLIGIBLE:.0%} of its standard deviation: an MLP would do, or the memory has not"
            " learned what to keep.",
        )
        return checkpoint, wrong
    looked_at = f"{checkpoint}: the policy looks back {steps_of(found)}"
    if gradient is None:
        return looked_at, wrong
    if length >= gradient:
        wrong.append(
            f"gradient_length is {gradient}, expected more than the {length} steps that the policy"
            f" looks back: the gradient is cut and the memory reaches further. Try"
            f" {max(2 * gradient, length + 1)}, with num_steps_per_env at least as long."
        )
    shorter = ": fewer would do" if gradient >= MUCH_LONGER * furthest else ""
    return f"{looked_at}, and gradients flow back {gradient}{shorter}", wrong


def steps_of(found: Mapping[str, Any], group: str | None = None) -> str:
    """Return how far a policy looks back, in one group or in all, as text."""
    looked = found if group is None else found["groups"][group]
    mostly = {"steps": looked["length"], "observed": len(looked["influence"]) - 1}
    seconds = found["step_seconds"]
    back = _stays(mostly, seconds)
    if _furthest(looked) == looked["length"]:
        return back
    return f"mostly {back}, a tail to {_stays(looked['tail'], seconds)}"


def _furthest(looked: Mapping[str, Any]) -> int:
    """Return the steps that a policy looks back with its tail, in one group or in all."""
    return max(looked["length"], looked["tail"]["steps"])


def memory_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Return a row per observation group: name, steps back, steps that outlier and freeze stay."""
    return [
        [name, steps_of(found, name), *(_stays(group[kind]) for kind in STAYING)]
        for name, group in found["groups"].items()
    ]


def memory_facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that belong to no observation group, as text by name."""
    return {
        "looks back": steps_of(found),
        "gradient": "unknown" if (g := found["gradient_length"]) is None else f"{g} steps",
        "recovers from a missed reset after": _stays(found["missed_reset"]),
        "units": f"{found['units']}, {found['moving']} active; effective dimension"
        f" {found['effective']:.1f}",
    }


def _stays(stay: Mapping[str, int], seconds: float | None = None) -> str:
    steps = stay["steps"]
    least = "at least " if steps and steps >= stay["observed"] else ""
    time = f" ({steps * seconds:.2g} s)" if steps and seconds else ""
    return f"{least}{steps} steps{time}"


def _faults(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a state that survives a reset, and faults that stay in the actions to the end."""
    if found["after_reset"] >= NEGLIGIBLE:
        yield (
            f"The state survives a reset, expected it to be empty: a changed observation moves the"
            f" actions of later episodes by up to {found['after_reset']:.2g} of their standard"
            " deviation. Look at the policy's reset()."
        )
    changes = [
        (text.format(f"'{name}'"), group[kind], _furthest(group))
        for name, group in found["groups"].items()
        for kind, text in STAYING.items()
    ]
    reset = ("The state of an earlier episode", found["missed_reset"], _furthest(found))
    for what, stay, furthest in (*changes, reset):
        # What the task itself has to remember may last as long as the memory; and a difference may
        # show only once in so many steps.
        start_of_end = stay["observed"] - max(furthest, 1)
        if stay["observed"] >= 3 * furthest + 10 and stay["steps"] > start_of_end:
            yield (
                f"{what} stays in the actions for {stay['steps']} of {stay['observed']} observed"
                " steps, expected it to leave: it spoils the rest of the episode. Clip observations"
                " on the robot, or train with such faults."
            )
