"""Find the settings that a training's command line changed, by the configs in its log folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rsl_tbptt.files import read_config, read_yaml
from rsl_tbptt.tools.platforms import ENV
from rsl_tbptt.tools.platforms.named_code import is_allowed
from rsl_tbptt.tools.platforms.noted_env import CHOSEN, MISSING, are_numbers, differences, dotted

AGENT = Path("params", "agent.yaml")
"""Where both platforms write the agent's config, next to the checkpoints."""
NAMED = {
    *(("agent", name) for name in ("seed", "device", "max_iterations", "run_name")),
    *(("agent", name) for name in ("resume", "load_run", "load_checkpoint")),
    *(("env", *keys) for keys in CHOSEN),
}
"""Settings that a command has options of its own for."""
BUILT = ("spawn_path", "terrain.num_envs", "terrain.env_spacing")
"""Suffixes of settings that the simulator fills in itself."""

Found = tuple[dict[str, Any], list[str]]
"""Values by their dotted names, and the names of others, which no option can set."""


def noted_settings(
    folder: Path, registered: Mapping[str, Any], as_dict: Callable[[Any], Any]
) -> Found:
    """Find the plain values of a run's configs that differ from those of its task.

    A run's folder may come from anybody, and a config names code. So strings of the environment's
    config are ignored, and so are the agent's unless :func:`is_allowed` accepts them.

    Args:
        folder: Log folder with ``params/agent.yaml`` and ``params/env.yaml``.
        registered: The task's configs, ``"agent"`` and ``"env"``.
        as_dict: Turns a config into what the platform writes.

    Raises:
        ValueError: If a file cannot be read.
    """
    import yaml  # of the extra `tools`, and platforms are imported without it

    values: dict[str, Any] = {}
    others: list[str] = []
    for part, file in (("agent", AGENT), ("env", ENV)):
        noted = read_config(folder / file, other=yaml.serialize)
        text = yaml.dump(as_dict(registered[part]), sort_keys=False)
        here = read_yaml(text, other=yaml.serialize)
        for keys, (value, old) in differences(noted, here, (part,)).items():
            name = dotted(keys)
            if keys in NAMED or name.endswith(BUILT):
                continue
            is_plain = are_numbers if part == "env" else partial(_is_simple, keys[-1])
            if old is not MISSING and is_plain(value) and is_plain(old):
                values[name] = value
            else:
                others.append(name)
    return values, others


def _is_simple(key: Any, value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_simple(key, each) for each in value)
    return is_allowed(key, value) if isinstance(value, str) else are_numbers(value)
