"""Read what a training left of its policy: checkpoint, config and platform, each once.

The model's config is the checkpoint's own description if it has one, otherwise a file of the
user's, or ``params/agent.yaml``, which platforms write next to the checkpoints. Reading runs no
code of these files: a class may only be one of rsl_rl, of this package or of a package that the
user trusts.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.algorithms.curricula import counted_steps
from rsl_tbptt.checkpoints.describing import agent_config
from rsl_tbptt.checkpoints.reading import read_checkpoint
from rsl_tbptt.compat import MODELS_ERA, require_era
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.core.scan.cells import Cell
from rsl_tbptt.files import AGENT, read_config
from rsl_tbptt.tools.platforms import Platform, load_platform, platform_of

require_era(MODELS_ERA, "rsl_tbptt.tools.run")

from rsl_rl.modules.distribution import Distribution  # noqa: E402  # only there

PARTS = {"student_state_dict": "student", "actor_state_dict": "actor"}
"""Checkpoint entries of a policy and its name in the agent's config, in order of preference."""
ITSELF = "its own description of its model"
PACKAGES = ("rsl_rl", "rsl_tbptt")
"""Packages whose classes a file may name; others need the user's trust."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained policy, as read from its checkpoint and the files next to it."""

    checkpoint: Path
    platform: Platform
    source: str
    """Start of error messages: the checkpoint, and the config that does not fit it."""
    config: dict[str, Any]
    """The agent's config."""
    part: str
    """The policy's name in it."""
    state_dict: dict[str, torch.Tensor]
    shapes: Mapping[str, Sequence[int]]
    """Shapes of the observation groups that the checkpoint records."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Dtypes of the same groups."""
    auxiliary: Mapping[str, Any] = field(default_factory=dict)
    """Its auxiliary heads, as the checkpoint has them."""
    robot: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the robot; see ``checkpoints/robot.py``."""
    iteration: int | None = None
    counted_steps: int | None = None
    """Steps that the environment had counted, for curricula; None if the checkpoint has none."""

    @property
    def groups(self) -> list[str]:
        """Names of the observation groups that the policy sees."""
        return self.config["obs_groups"][self.part]

    @property
    def clip_actions(self) -> float | None:
        """Bound of the actions in training."""
        return self.config.get("clip_actions")

    def trained_task(self) -> str:
        """Return the registered id of the task that the policy was trained on.

        Raises:
            ValueError: If the files next to the checkpoint do not tell.
        """
        return self.platform.find_trained(self.checkpoint).task


def read_run(
    checkpoint: Path,
    platform_name: str | None = None,
    agent: Path | None = None,
    trust: Sequence[str] = (),
    task: str | None = None,
) -> Run:
    """Read a policy's parameters and config, without running code that the files contain or name.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.
        platform_name: One of :data:`rsl_tbptt.tools.platforms.PLATFORMS`. None detects it.
        agent: YAML file of the training's config instead of that next to the checkpoint.
        trust: Packages, in addition to rsl_rl and this one, whose classes these files may name. The
            classes in the config of the registered task are always allowed: the user has installed
            that task.
        task: Registered id of that task. None takes the one that is noted.

    Returns:
        Everything that building the policy needs. Of a checkpoint that does not describe itself the
        sizes of observations are missing.

    Raises:
        FileNotFoundError: If the config next to the checkpoint is missing.
        ValueError: If the checkpoint is missing or cannot be read, its policy is missing, the
            config is of another policy or names a class that is not trusted.
    """
    platform = load_platform(platform_name or platform_of(checkpoint))
    loaded = read_checkpoint(str(checkpoint), "cpu")
    key = next((key for key in PARTS if loaded.get(key)), None)
    if key is None:
        raise ValueError(f"{checkpoint} holds {sorted(loaded)}, expected one of {list(PARTS)}.")
    part, state_dict = PARTS[key], loaded[key]
    if not (isinstance(state_dict, dict) and all(map(torch.is_tensor, state_dict.values()))):
        raise ValueError(f"{checkpoint} holds no tensors by name as {key}, expected parameters.")
    ours = loaded.get("rsl_tbptt", {})
    robot = ours.get("robot", {})
    step_dt = robot.get("step_dt", 1.0)
    if not (isinstance(step_dt, (int, float)) and 0 < step_dt < math.inf):
        raise ValueError(f"step_dt is {step_dt!r} in {checkpoint}, expected seconds above 0.")
    recorded = ours.get("models", {})
    config, source = _policy_config(checkpoint, agent, part, recorded)
    if trust:
        sys.path.append(str(Path.cwd()))  # after all installed packages
    _check_classes(config[part], part, checkpoint, trust, task)
    groups = recorded.get(part, {}).get("groups", {})
    return Run(
        checkpoint=checkpoint,
        platform=platform,
        source=f"{checkpoint} does not fit {source}",
        config=config,
        part=part,
        state_dict=state_dict,
        shapes={name: group["shape"] for name, group in groups.items()},
        dtypes={n: _dtype_of(group["dtype"], n, checkpoint) for n, group in groups.items()},
        auxiliary=ours.get("auxiliary", {}),
        robot=robot,
        iteration=loaded.get("iter"),
        counted_steps=counted_steps(loaded),
    )


def _dtype_of(name: Any, group: str, checkpoint: Path) -> torch.dtype:
    """Return the dtype of an observation group.

    Raises:
        ValueError: If it is none.
    """
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(
            f"The dtype of '{group}' is {name!r} in {checkpoint}, expected one such as 'float32'."
        )
    return dtype


def _policy_config(
    checkpoint: Path, agent: Path | None, part: str, recorded: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the agent's config that a policy is built from, and its source for messages.

    Args:
        checkpoint: The policy's file.
        agent: YAML file that the user names instead of the one next to the checkpoint.
        part: The policy's name in the config, "student" or "actor".
        recorded: Descriptions by model that the checkpoint holds; see
            :func:`rsl_tbptt.checkpoints.describing.describe`.

    Raises:
        FileNotFoundError: If there is no config.
        ValueError: If the config is incomplete.
    """
    described = recorded.get(part, {})
    describes_itself = "arguments" in described and bool(described.get("groups"))
    if agent is not None:
        config, source = read_config(agent), str(agent)
    elif (checkpoint.parent / AGENT).is_file() or not describes_itself:
        config, source = agent_config(checkpoint), f"its {AGENT}"
    else:
        config, source = {}, ITSELF
    if describes_itself:
        model = {"class_name": described["class_name"], **described["arguments"]}
        groups = {name: [*description["groups"]] for name, description in recorded.items()}
        return {**config, "obs_groups": groups, part: model}, ITSELF
    _check_form(config, part, source)
    # mjlab's class has the fields of every model.
    is_rnn = config[part].get("rnn_type", "lstm") is not None
    model = {
        name: value
        for name, value in config[part].items()
        if value is not None and (is_rnn or not name.startswith("rnn_"))
    }
    return {**config, part: model}, source


def _check_form(config: Mapping[str, Any], part: str, source: str) -> None:
    """Check that the config sections of a policy are there and have the right types.

    Raises:
        ValueError: If one is missing or has a wrong type.
    """
    for name in (part, "obs_groups"):
        if not isinstance(config.get(name, {}), dict):
            raise ValueError(f"{name} is {config[name]!r} in {source}, expected a mapping.")
    groups = config.get("obs_groups", {}).get(part)
    for name, value in ((part, config.get(part)), (f"obs_groups.{part}", groups)):
        if value is None:
            raise ValueError(
                f"{name} is missing in {source}, expected the training's: name a YAML file of its"
                " whole config as --agent FILE."
            )
    if not isinstance(groups, (list, tuple)) or not all(isinstance(name, str) for name in groups):
        raise ValueError(f"obs_groups.{part} is {groups!r} in {source}, expected a list of names.")


def _check_classes(
    model_cfg: Mapping[str, Any],
    part: str,
    checkpoint: Path,
    trust: Sequence[str],
    task: str | None,
) -> None:
    """Check that a model's config names only classes of trusted packages.

    A name is resolved only if its module belongs to a trusted package. The resolved object has to
    belong to one too: ``rsl_rl.utils:torch.hub.load`` does not.

    Raises:
        ValueError: If a class is not trusted.
    """
    try:
        named = list(_named_classes({"class_name": None, **model_cfg}, part))
    except RecursionError as error:  # YAML can contain itself
        raise ValueError(f"{part} is nested too deep, expected a mapping of options.") from error
    for place, name in named:
        refusal = _refusal(name, trust)
        if refusal is not None and name not in _registered_classes(checkpoint, task):
            raise ValueError(f"{place} is {name!r}, expected {refusal}")


def _named_classes(config: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the key and the name of every class and own cell in a config, at any depth."""
    if isinstance(config, (list, tuple)):
        config = dict(enumerate(config))
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key == "class_name" or (key == "rnn_type" and ":" in str(value)):
            yield f"{place}.{key}", value
        else:
            yield from _named_classes(value, f"{place}.{key}")


def _refusal(name: Any, trust: Sequence[str]) -> str | None:
    """Return what is expected in place of a name, and how to allow it; None if it is trusted."""
    path = name.replace(":", ".") if isinstance(name, str) else ""
    if not all(word.isidentifier() for word in path.split(".")):
        return "a name such as 'RNNModel' or 'package.module:Class'."
    if path.startswith("__main__."):
        return "a class of a module: move it out of the script that trains."
    origin = path if "." in path else "rsl_rl."  # where rsl_rl looks for a simple name
    allowed = "a model or distribution of rsl_rl or rsl_tbptt"
    if _is_within(origin, (*PACKAGES, *trust)):
        try:
            named = resolve_callable(name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            return f"one that can be imported: {error}."
        origin = f"{getattr(named, '__module__', None)}."
        is_class = isinstance(named, type) and issubclass(named, (MLPModel, Distribution))
        is_known = is_class or isinstance(named, Cell)
        if _is_within(origin, trust) or (is_known and _is_within(origin, PACKAGES)):
            return None
        if _is_within(origin, PACKAGES):
            return f"{allowed}."
        allowed = f"{allowed}, and it is from {origin[:-1]}"
    return (
        f"{allowed}: other code runs only if you trust its package. If you do, add --trust"
        f" {origin.split('.')[0]}, in Python trust=[...]."
    )


def _registered_classes(checkpoint: Path, task: str | None) -> list[Any]:
    """Return the classes that the agent of a checkpoint's registered task names."""
    try:
        platform = load_platform(platform_of(checkpoint))
        agent = platform.registered_agent(platform.find_trained(checkpoint, task))
    except Exception:  # the task is unknown, or its package is not installed
        return []
    return [name for _, name in _named_classes(agent, "")]


def _is_within(path: str, packages: Sequence[str]) -> bool:
    """Return whether a dotted path leads into one of some packages or modules."""
    return any(path.startswith(f"{package}.") for package in packages)
