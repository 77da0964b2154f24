"""The environment's config of a training, compared with the one to be simulated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rsl_tbptt.files import read_config, read_yaml

CHOSEN = {("seed",), ("log_dir",), ("scene", "num_envs"), ("sim", "device")}
"""Entries that an evaluation chooses itself."""
CODE = ("class_type", "func")
"""Keys that name what a section configures: with another one its other keys mean something else."""
MOST_NAMES = 8

Keys = tuple[Any, ...]
MISSING = object()
"""In place of a value that a config does not have."""


class NotedEnv:
    """Applies what a training's command line had changed in its environment.

    A run's folder may come from anybody, and a config names code. So only its numbers, None and
    lists of them are applied, and the other differences are named.
    """

    def __init__(self, file: Path | None, as_dict: Callable[[Any], Any]) -> None:
        """Read a config without running code that it may contain.

        Args:
            file: ``params/env.yaml`` of a run. None: nothing is applied.
            as_dict: Turns a config into what the platform writes.

        Raises:
            ValueError: If it cannot be read.
        """
        self._file, self._as_dict = file, as_dict
        self._noted = None if file is None else read_config(file, **_as_plain())
        self._left: set[Keys] = set()

    def apply(self, cfg: Any, default: Any = None) -> None:
        """Set the numbers that the training had, and print them.

        Args:
            cfg: The config of the environment to be simulated, which is changed.
            default: The task's config without the user's overrides, which are left alone. None
                where there are none.
        """
        if self._noted is None:
            return
        here = self._as_written(cfg)
        chosen = () if default is None else differences(here, self._as_written(default))
        applied = []
        for keys, (value, old) in differences(self._noted, here).items():
            if keys in CHOSEN or any(keys[: len(k)] == k[: len(keys)] for k in chosen):
                continue
            if old is not MISSING and are_numbers(value) and (are_numbers(old) or value is None):
                _put(cfg, keys, value)
                applied.append(f"{dotted(keys)}={value}")
            else:
                self._left.add(keys)
        if applied:
            print(f"as in training, by {self._file}: {' '.join(applied)}", flush=True)

    def warn_of_others(self, cfg: Any) -> None:
        """Warn of differences that were not applied and remain once the environment is built.

        Args:
            cfg: The config of the environment, which building completed as in training.
        """
        still = differences(self._noted, self._as_written(cfg)) if self._noted else {}
        names = [dotted(keys) for keys in still if keys in self._left]
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            warnings.warn(
                f"The environment differs from {self._file} in {', '.join(names[:MOST_NAMES])}"
                f"{more}, expected the training's: only numbers of a run's folder are applied."
                " Isaac Lab takes the rest as overrides: physics=..., presets=..., env.NAME=VALUE.",
                stacklevel=2,
            )

    def _as_written(self, cfg: Any) -> dict[str, Any]:
        """Return a config as it would be read from the file that the platform writes."""
        import yaml

        return read_yaml(yaml.dump(self._as_dict(cfg), sort_keys=False), **_as_plain())


def _as_plain() -> dict[str, Any]:
    """Return how a config is read: tuples as lists, and Python's other objects as text."""
    import yaml  # of the extra `tools`, and platforms are imported without it

    return {"sequence": list, "other": yaml.serialize}


def differences(
    noted: Mapping[Any, Any], here: Mapping[Any, Any], above: Keys = ()
) -> dict[Keys, tuple[Any, Any]]:
    """Return both values where two configs differ, by keys from the outside in."""
    found: dict[Keys, tuple[Any, Any]] = {}
    for key in {**noted, **here}:
        a, b = noted.get(key, MISSING), here.get(key, MISSING)
        if isinstance(a, dict) and isinstance(b, dict) and all(a.get(c) == b.get(c) for c in CODE):
            found |= differences(a, b, (*above, key))
        elif not (a == b or repr(a) == repr(b) or _is_same_file(a, b)):  # NaN equals by repr alone
            found[(*above, key)] = (a, b)
    return found


def _is_same_file(a: Any, b: Any) -> bool:
    """Return whether two paths name a file alike: packages lie elsewhere on another machine."""
    are_paths = isinstance(a, str) and isinstance(b, str) and "/" in a and "/" in b
    return are_paths and Path(a).name == Path(b).name


def are_numbers(value: Any) -> bool:
    """Return whether a value is a number, None or a list or tuple of such."""
    if isinstance(value, (list, tuple)):
        return all(map(are_numbers, value))
    return value is None or isinstance(value, (bool, int, float))


def _put(cfg: Any, keys: Keys, value: Any) -> None:
    """Set a value of a config of objects and dictionaries; tuples stay tuples."""
    for key in keys[:-1]:
        cfg = cfg[key] if isinstance(cfg, dict) else getattr(cfg, key)
    values = cfg if isinstance(cfg, dict) else vars(cfg)
    is_tuple = isinstance(values[keys[-1]], tuple) and isinstance(value, list)
    values[keys[-1]] = tuple(value) if is_tuple else value


def dotted(keys: Keys) -> str:
    """Write the place of a value in a config: ``scene.num_envs``."""
    return ".".join(map(str, keys))
