"""The README of a bundle: the main parts of its ``policy.json``, for people who run the policy."""

from collections.abc import Iterator, Mapping
from typing import Any


def readme(metadata: Mapping[str, Any]) -> str:
    """Return the README, from the content of ``policy.json``."""
    return "\n".join(_lines(metadata)) + "\n"


def _lines(metadata: Mapping[str, Any]) -> Iterator[str]:
    onnx, rate, robot = metadata["onnx"], metadata["control_hz"], metadata["robot"]
    yield f"# A policy for robots, {metadata['checkpoint']}\n"
    yield (
        f"From {metadata['trained_as']}, iteration {metadata['iteration']}. `policy.json` has all"
        " of this, and the scale, clip and history of each term. `rsl-tbptt verify . --trust .`"
        f" compares the files with the trained policy. `golden.npz`: {metadata['golden']}."
        f" `policy.onnx`: opset {onnx['opset']}, IR version {onnx['ir_version']}.\n"
    )
    if task := metadata["simulation"]:
        yield (
            f"`rsl-tbptt evaluate --policy .` evaluates it in {task['task']} of {task['platform']},"
            " `rsl-tbptt play --policy . --video film.webp` films it there.\n"
        )
    yield f"**In**, {f'{rate:g} times a second' if rate else 'at every step'}:\n"
    for name, each in metadata["inputs"].items():
        yield f"- `{name}`, {each['dtype']}, {each['shape']}"
    yield "\nThese observation groups in order, with their terms in order:\n"
    for name, group in metadata["observation_groups"].items():
        by_time = ", all of a step before the next step's" * (group.get("history_order") == "time")
        terms = ", ".join(f"{term['name']} {term['shape']}" for term in group.get("terms", ()))
        yield f"- `{name}` {group['shape']}{by_time}{': ' * bool(terms)}{terms}"
    yield f"\n**Out**: {', '.join(f'`{name}`' for name in metadata['outputs'])}.\n"
    if (limit := robot.get("clip_actions")) is not None:
        yield f"- first, clip every action to ±{limit:g}"
    for action in robot.get("actions", ()):
        joints, clip = ", ".join(action["joint_names"]), action["clip"]
        change = f"times {action['scale']} plus {action['offset']}, clip {clip}"
        yield f"- {action['kind']} of {joints}: {change}"
    if names := metadata["state_names"]:
        states = f"{', '.join(f'`{name}_in`' for name in names)}, {metadata['state_shapes']}"
        yield f"\n**Memory**: pass `h_out` as the next `h_in`: {states}. {metadata['reset']}"
