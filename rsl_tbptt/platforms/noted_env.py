"""The environment's config as it was trained with, which platforms write beside the checkpoints.

A run's folder may come from anybody, and a config names code: of what it holds only numbers, None
and lists of them are applied. What else differs is named.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rsl_tbptt.files import read_yaml

ENV = Path("params", "env.yaml")
"""Where Isaac Lab and mjlab write it, beside the checkpoints."""
OWN = {("seed",), ("log_dir",), ("scene", "num_envs"), ("sim", "device")}
"""What an evaluation chooses itself."""
CODE = ("class_type", "func")
"""Keys that name what a section configures: with another one its other keys mean something else."""
MOST_NAMES = 8

Keys = tuple[Any, ...]


class NotedEnv:
    """What a run's config says about its environment, compared with the one to be simulated."""

    def __init__(self, file: Path) -> None:
        """Read a config without running code that it may contain.

        Args:
            file: ``params/env.yaml`` of a run.

        Raises:
            ValueError: If it cannot be read.
        """
        import yaml  # of the extra `tools`, and platforms are imported without it

        self._file = file
        try:
            self._noted = _read(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ValueError(f"The config '{file}' cannot be read: {error}") from error
        if not isinstance(self._noted, dict):
            raise ValueError(f"The config '{file}' holds {self._noted!r}, expected a mapping.")
        self._left: set[Keys] = set()

    def apply(self, cfg: Any, as_dict: Callable[[Any], Any], default: Any = None) -> None:
        """Set the numbers that the training had, and print them.

        Args:
            cfg: The config of the environment to be simulated, which is changed.
            as_dict: Makes of a config what the platform writes.
            default: The task's config without the user's overrides, which are left alone. None
                where there are none.
        """
        here = _read_back(as_dict(cfg))
        chosen = set() if default is None else {*_differences(here, _read_back(as_dict(default)))}
        applied = []
        for keys, (value, old) in _differences(self._noted, here).items():
            if keys in OWN or any(keys[: len(k)] == k[: len(keys)] for k in chosen):
                continue
            if _is_plain(value) and (_is_plain(old) or value is None):
                _put(cfg, keys, value)
                applied.append(f"{_name(keys)}={value}")
            else:
                self._left.add(keys)
        if applied:
            print(f"as in training, by {self._file}: {' '.join(applied)}", flush=True)

    def warn_of_others(self, cfg: Any, as_dict: Callable[[Any], Any]) -> None:
        """Warn of what was not applied and still differs once the environment is built.

        Args:
            cfg: The config of the environment, which building completed as in training.
            as_dict: See :meth:`apply`.
        """
        still = _differences(self._noted, _read_back(as_dict(cfg)))
        names = [_name(keys) for keys in still if keys in self._left]
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            warnings.warn(
                f"The environment differs from {self._file} in {', '.join(names[:MOST_NAMES])}"
                f"{more}, expected the training's: of a run's folder only numbers are applied."
                " Isaac Lab takes the rest as overrides: physics=..., presets=..., env.NAME=VALUE.",
                stacklevel=2,
            )


def _read_back(values: Any) -> dict[str, Any]:
    """Return a config as it would be read from the file that the platform writes."""
    import yaml

    return _read(yaml.dump(values, sort_keys=False))


def _read(text: str) -> Any:
    """Read a config: tuples as lists, and Python's other objects as text."""
    import yaml

    return read_yaml(text, sequence=list, other=yaml.serialize)


class _Missing:
    """Stands for a key that one config lacks."""


def _differences(
    noted: Mapping[Any, Any], here: Mapping[Any, Any], above: Keys = ()
) -> dict[Keys, tuple[Any, Any]]:
    """Return both values where two configs differ, by keys from the outside in."""
    found: dict[Keys, tuple[Any, Any]] = {}
    for key in {**noted, **here}:
        a, b = noted.get(key, _Missing), here.get(key, _Missing)
        if isinstance(a, dict) and isinstance(b, dict) and all(a.get(c) == b.get(c) for c in CODE):
            found |= _differences(a, b, (*above, key))
        elif not (a == b or repr(a) == repr(b) or _is_same_file(a, b)):  # NaN equals by repr alone
            found[(*above, key)] = (a, b)
    return found


def _is_same_file(a: Any, b: Any) -> bool:
    """Return whether two paths name a file alike: packages lie elsewhere on another machine."""
    are_paths = isinstance(a, str) and isinstance(b, str) and "/" in a and "/" in b
    return are_paths and Path(a).name == Path(b).name


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, None or a list of such."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float))


def _put(cfg: Any, keys: Keys, value: Any) -> None:
    """Set a value of a config of objects and dictionaries; tuples stay tuples."""
    *outer, last = keys
    for key in outer:
        cfg = cfg[key] if isinstance(cfg, dict) else getattr(cfg, key)
    old = cfg[last] if isinstance(cfg, dict) else getattr(cfg, last)
    if isinstance(old, tuple) and isinstance(value, list):
        value = tuple(value)
    if isinstance(cfg, dict):
        cfg[last] = value
    else:
        setattr(cfg, last, value)


def _name(keys: Keys) -> str:
    return ".".join(map(str, keys))
