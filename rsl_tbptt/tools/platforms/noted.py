"""What a run's folder notes of its training: its configs, compared with those of its task.

A run's folder may come from anybody, and a config names code: rsl_rl imports what a text names,
``module:object.attribute``, ``module.object``, or a simple name of its own. So of the environment's
config only numbers, None and lists of them are used; and a text of the agent's may name a class of
rsl_rl or of this package, or it has no form that anything could import.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rsl_tbptt.files import AGENT, ENV, read_config, read_yaml

PACKAGES = ("rsl_rl", "rsl_tbptt")
"""Packages whose classes a file may name; others need the user's trust."""
TRAINED_WITH = ("rsl_rl", "rsl_tbptt.algorithms", "rsl_tbptt.models", "rsl_tbptt.runners")
"""Where classes that a training's config names are defined."""
CLASS = "class_name"
"""Key of such names. rsl_rl looks for a simple name, too, and finds more than classes."""
WORDS = re.compile(r"(?!-)(?:[\w ,+=@~'()-]*|\.{1,2}(?=/))(?:/[\w ,+=@~'()./-]*)?")
"""Texts that nothing imports, as no dot or colon comes before the first slash. A command line takes
them as they are: a minus in front starts an option, a dollar is a reference in Hydra."""

CHOSEN = {("seed",), ("log_dir",), ("scene", "num_envs"), ("sim", "device")}
"""Entries that an evaluation chooses itself."""
NAMED = {
    *(("agent", name) for name in ("seed", "device", "max_iterations", "run_name")),
    *(("agent", name) for name in ("resume", "load_run", "load_checkpoint")),
    *(("env", *keys) for keys in CHOSEN),
}
"""Settings that a command has options of its own for."""
BUILT = ("spawn_path", "terrain.num_envs", "terrain.env_spacing")
"""Suffixes of settings that the simulator fills in itself."""
CODE = ("class_type", "func")
"""Keys that name what a section configures: with another one its other keys mean something else."""
MOST_NAMES = 8

Keys = tuple[Any, ...]
Found = tuple[dict[str, Any], list[str]]
"""Values by their dotted names, and the names of others, which no option can set."""
MISSING = object()
"""In place of a value that a config does not have."""


def noted_settings(
    folder: Path, registered: Mapping[str, Any], as_dict: Callable[[Any], Any]
) -> Found:
    """Find the plain values of a run's configs that differ from those of its task.

    Args:
        folder: Log folder with ``params/agent.yaml`` and ``params/env.yaml``.
        registered: The task's configs, ``"agent"`` and ``"env"``.
        as_dict: Turns a config into what the platform writes.

    Raises:
        ValueError: If a file cannot be read.
    """
    values: dict[str, Any] = {}
    others: list[str] = []
    for part, file in (("agent", AGENT), ("env", ENV)):
        noted = read_config(folder / file, other=_as_text)
        here = _as_written(as_dict(registered[part]), other=_as_text)
        for keys, (value, old) in differences(noted, here, (part,)).items():
            name = dotted(keys)
            if keys in NAMED or name.endswith(BUILT):
                continue
            key = keys[-1] if part == "agent" else None
            if old is not MISSING and is_plain(value, key) and is_plain(old, key):
                values[name] = value
            else:
                others.append(name)
    return values, others


class NotedEnv:
    """Applies the numbers that a training's command line had changed in its environment.

    The other differences are named.
    """

    def __init__(self, file: Path | None = None, settings: Mapping[str, Any] | None = None) -> None:
        """Read a config without running code that it may contain.

        Args:
            file: ``params/env.yaml`` of a run. None: nothing is applied.
            settings: What differs from the task's config, which ``file`` holds in another form; see
                :attr:`settings`. None reads ``file``.

        Raises:
            ValueError: If it cannot be read.
        """
        self._file, self._changes = file, settings
        self._noted: dict[str, Any] = {}
        if file is not None and settings is None:
            self._noted = read_config(file, sequence=list, other=_as_text)
        self._as_dict: Callable[[Any], Any] = dict
        self._left: set[Keys] = set()
        self.settings: dict[str, Any] = {}
        """The numbers that :meth:`apply` has set, nested like the config."""

    def apply(self, cfg: Any, as_dict: Callable[[Any], Any], default: Any = None) -> None:
        """Set the numbers that the training had, and print them.

        Args:
            cfg: The config of the environment to be simulated, which is changed.
            as_dict: Turns a config into what the platform writes.
            default: The task's config without the user's overrides, which are left alone. None
                where there are none.
        """
        if self._file is None:
            return
        self._as_dict = as_dict
        here = self._written(cfg)
        if self._changes is not None:
            self._noted = _changed(here, self._changes)
        chosen = () if default is None else differences(here, self._written(default))
        applied = []
        for keys, (value, old) in differences(self._noted, here).items():
            is_chosen = keys in CHOSEN or any(keys[: len(k)] == k[: len(keys)] for k in chosen)
            if is_chosen or dotted(keys).endswith(BUILT):
                continue
            if old is not MISSING and is_plain(value) and (is_plain(old) or value is None):
                _put(cfg, keys, value)
                _nest(self.settings, keys, value)
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
        still = differences(self._noted, self._written(cfg)) if self._noted else {}
        names = [dotted(keys) for keys in still if keys in self._left]
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            warnings.warn(
                f"The environment differs from {self._file} in {', '.join(names[:MOST_NAMES])}"
                f"{more}, expected the training's: only numbers of a run's folder are applied."
                " Isaac Lab takes the rest as overrides: physics=..., presets=..., env.NAME=VALUE.",
                stacklevel=2,
            )

    def _written(self, cfg: Any) -> dict[str, Any]:
        return _as_written(self._as_dict(cfg), sequence=list, other=_as_text)


def _as_written(cfg: Any, **options: Any) -> dict[str, Any]:
    """Return a config as it would be read from the file that the platform writes."""
    import yaml  # of the extra `tools`, and platforms are imported without it

    return read_yaml(yaml.dump(cfg, sort_keys=False), **options)


def _as_text(node: Any) -> str:
    """Return one of Python's other objects as text."""
    import yaml

    return yaml.serialize(node)


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


def is_plain(value: Any, key: Any = None) -> bool:
    """Return whether a value is a number, None or a list or tuple of such.

    Args:
        value: The value.
        key: The last key of its place in an agent's config, which may also have texts that
            :func:`is_allowed` accepts. None accepts no text.
    """
    if isinstance(value, (list, tuple)):
        return all(is_plain(each, key) for each in value)
    if isinstance(value, str):
        return key is not None and is_allowed(key, value)
    return value is None or isinstance(value, (bool, int, float))


def _put(cfg: Any, keys: Keys, value: Any) -> None:
    """Set a value of a config of objects and dictionaries; tuples stay tuples."""
    for key in keys[:-1]:
        cfg = cfg[key] if isinstance(cfg, dict) else getattr(cfg, key)
    values = cfg if isinstance(cfg, dict) else vars(cfg)
    is_tuple = isinstance(values[keys[-1]], tuple) and isinstance(value, list)
    values[keys[-1]] = tuple(value) if is_tuple else value


def _nest(sections: dict[str, Any], keys: Keys, value: Any) -> None:
    """Set a value of nested dictionaries, which are made where they are missing."""
    for key in keys[:-1]:
        sections = sections.setdefault(key, {})
    sections[keys[-1]] = value


def _changed(config: Any, changes: Any) -> Any:
    """Return a config with the values that nested changes have in their place."""
    if not (isinstance(config, Mapping) and isinstance(changes, Mapping)):
        return changes
    return {**config, **{key: _changed(config.get(key), changes[key]) for key in changes}}


def dotted(keys: Keys) -> str:
    """Write the place of a value in a config: ``scene.num_envs``."""
    return ".".join(map(str, keys))


def is_allowed(key: Any, text: str) -> bool:
    """Return whether a text of a config imports nothing but a class to train with.

    Args:
        key: The last key of its place in the config.
        text: The text.
    """
    return (key != CLASS and WORDS.fullmatch(text) is not None) or names_known_class(text)


def names_known_class(name: str) -> bool:
    """Return whether a name is that of a class in :data:`TRAINED_WITH`, or simple and nowhere.

    The name is resolved only if its module belongs to :data:`PACKAGES`, and the class has to be
    defined there, too: ``rsl_rl.utils:torch.hub.load`` is not.
    """
    path = name.replace(":", ".")
    if not is_dotted(path) or ("." in path and not is_within(path, PACKAGES)):
        return False
    from rsl_tbptt.compat.versions import resolve_callable  # torch, which platforms do not need

    try:
        found: Any = resolve_callable(name)
    except (ImportError, AttributeError, TypeError, ValueError):
        return "." not in path
    return isinstance(found, type) and is_within(f"{found.__module__}.", TRAINED_WITH)


def is_dotted(path: str) -> bool:
    """Return whether a text is identifiers with dots between them."""
    return all(word.isidentifier() for word in path.split("."))


def is_within(path: str, packages: Sequence[str]) -> bool:
    """Return whether a dotted path leads into one of some packages or modules."""
    return any(path.startswith(f"{package}.") for package in packages)
