"""Find the config that a checkpoint's policy is built from, and check the classes it names.

Checkpoints of this package describe their models; this comes first. Then comes
``params/agent.yaml``, which platforms write next to them, or a file of the user's. The shapes of
the parameters show most of the rest.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rsl_tbptt.checkpoints.describing import agent_config
from rsl_tbptt.compat import MODELS_ERA, require_era
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.core.scan import CELLS
from rsl_tbptt.files import AGENT, read_config
from rsl_tbptt.tools.platforms import load_platform, platform_of
from rsl_tbptt.tools.platforms.noted import PACKAGES, is_dotted, is_within

require_era(MODELS_ERA, "rsl_tbptt.tools.simulate.policy_config")

from rsl_rl.modules.distribution import Distribution  # noqa: E402  # only there

ITSELF = "its own description of its model"
RSL_RL_NAMES = {"CELU": "crelu", "LeakyReLU": "lrelu", "SiLU": "swish"}
"""rsl_rl's names of activations that are not torch's in lower case."""


def policy_config(
    checkpoint: Path,
    agent: Path | None,
    part: str,
    state_dict: Mapping[str, torch.Tensor],
    recorded: Mapping[str, Any],
    trust: Sequence[str],
) -> tuple[dict[str, Any], str]:
    """Return the agent's config that a policy is built from, and its source for messages.

    Args:
        checkpoint: The policy's file.
        agent: YAML file that the user names instead of the one next to the checkpoint.
        part: The policy's name in the config, "student" or "actor".
        state_dict: Its parameters, whose shapes show its layers.
        recorded: Descriptions by model that the checkpoint holds; see
            :func:`rsl_tbptt.checkpoints.describing.describe`.
        trust: Packages whose classes the files may name.

    Raises:
        FileNotFoundError: If no file has the options that parameters do not show.
        ValueError: If the config is of another policy, incomplete, or names a class that is not
            trusted.
    """
    own = _recorded_config(recorded) if part in recorded else {}
    if agent is not None:
        given, source = read_config(agent), str(agent)
    elif not own or (checkpoint.parent / AGENT).is_file():
        given, source = agent_config(checkpoint), f"its {AGENT}"
    else:
        given, source = {}, ITSELF
    given = {name: value for name, value in given.items() if value is not None}
    _check_form(given, part, source)
    _check_agrees(given, own, part, source)
    if "arguments" in recorded.get(part, {}) and own["obs_groups"][part]:
        _check_classes(own[part], part, checkpoint, trust)
        return {**given, **own}, ITSELF
    # A platform writes all options; a user's file may have only those that parameters do not show.
    is_whole = agent is None and part in given and part in given.get("obs_groups", {})
    shown = {} if is_whole else _shown_by(state_dict)
    model = {**shown, **own.get(part, {}), **given.get(part, {})}
    _check_classes(model, part, checkpoint, trust)
    if not is_whole:
        _check_complete(model, part)
    groups = {part: ["obs"], **own.get("obs_groups", {}), **given.get("obs_groups", {})}
    return {**given, "obs_groups": groups, part: _set_fields(model)}, source


def _recorded_config(models: Mapping[str, Any]) -> dict[str, Any]:
    """Return as much of a config as a checkpoint's descriptions of its models contain.

    Each description has the model's class and all arguments, or its class and activation.
    """
    config: dict[str, Any] = {"obs_groups": {}}
    for part, model in models.items():
        config["obs_groups"][part] = list(model.get("groups") or model["obs_groups"])
        known = {"class_name": model["class_name"]} if "class_name" in model else {}
        for activation in model["activations"] if "arguments" not in model else ():
            known["activation"] = RSL_RL_NAMES.get(activation, activation.lower())
        config[part] = known | model.get("arguments", {})
    return config


def _check_form(config: Mapping[str, Any], part: str, source: str) -> None:
    """Check that the config sections of a policy have the right types.

    Raises:
        ValueError: If one has a wrong type.
    """
    for name in (part, "obs_groups"):
        if not isinstance(config.get(name, {}), dict):
            raise ValueError(f"{name} is {config[name]!r} in {source}, expected a mapping.")
    groups = config.get("obs_groups", {}).get(part, [])
    if not isinstance(groups, (list, tuple)) or not all(isinstance(name, str) for name in groups):
        raise ValueError(f"obs_groups.{part} is {groups!r} in {source}, expected a list of names.")


def _check_agrees(
    given: Mapping[str, Any], recorded: Mapping[str, Any], part: str, source: str
) -> None:
    """Check that a file does not contradict a checkpoint's description of its own model.

    Raises:
        ValueError: If it does.
    """

    def relevant(config: Mapping[str, Any]) -> dict[str, Any]:
        groups = config.get("obs_groups", {}).get(part)
        return {part: config.get(part, {}), "obs_groups": {part: groups}}

    for place, one, other in _differences(relevant(given), relevant(recorded)):
        raise ValueError(
            f"{place} is {one!r} in {source}, expected {other!r} as in the training that the"
            " checkpoint describes: the same parameters would act differently. Leave it out."
        )


def _differences(
    given: Mapping[str, Any], recorded: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the key and both values where two configs differ; a key must be in both."""
    for key in given:
        one, other = given[key], recorded.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{above}{key}.")
        elif None not in (one, other) and _compared(key, one) != _compared(key, other):
            yield f"{above}{key}", one, other


def _compared(key: str, value: Any) -> Any:
    """Normalise a value, so that different spellings of it compare equal."""
    if key == "class_name":
        return re.split("[.:]", str(value))[-1]
    if key == "activation":
        return str(value).lower()
    return [_compared("", each) for each in value] if isinstance(value, (list, tuple)) else value


def _shown_by(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the part of a model's config that its parameters show."""
    last = int(last_layer(state_dict).split(".")[1])
    hidden = [state_dict.get(f"mlp.{layer}.weight") for layer in range(last)]
    shown: dict[str, Any] = {
        "class_name": "MLPModel",
        "hidden_dims": [weight.shape[0] for weight in hidden if weight is not None],
        "obs_normalization": any(name.startswith("obs_normalizer.") for name in state_dict),
    }
    weight_hh = state_dict.get("rnn.rnn.weight_hh_l0")
    if weight_hh is not None:
        cell = _cell_shown_by(state_dict["rnn.rnn.weight_ih_l0"], weight_hh)
        shown |= {
            "class_name": "RNNModel"
            if cell in ("LSTM", "GRU")
            else "rsl_tbptt.models:RecurrentModel",
            "rnn_type": cell.lower(),
            "rnn_hidden_dim": weight_hh.shape[1],
            "rnn_num_layers": sum(name.startswith("rnn.rnn.weight_hh_l") for name in state_dict),
        }
    for name, std_type in (("std_param", "scalar"), ("log_std_param", "log")):
        if f"distribution.{name}" in state_dict:
            gaussian = {"class_name": "GaussianDistribution", "std_type": std_type}
            shown["distribution_cfg"] = gaussian
    return shown


def _cell_shown_by(weight_ih: torch.Tensor, weight_hh: torch.Tensor) -> str:
    """Return the first cell whose weights have as many rows for each hidden unit.

    Raises:
        ValueError: If there is none.
    """
    rows = [len(weight) // weight_hh.shape[1] for weight in (weight_ih, weight_hh)]
    for name, make in CELLS.items():
        if rows == [len(weight) for weight in make(1, 1, device="meta").all_weights[0][:2]]:
            return name
    raise ValueError(
        f"The recurrent weights have {rows} rows for each hidden unit, expected those of a cell in"
        f" {[*CELLS]}: register your own in the module of your model's class."
    )


def last_layer(state_dict: Mapping[str, torch.Tensor]) -> str:
    """Name the weight of the head's last layer, shape (outputs, inputs).

    Raises:
        ValueError: If there is no head as in rsl_rl's models.
    """
    layers = [name for name in state_dict if re.fullmatch(r"mlp\.\d+\.weight", name)]
    if not layers:
        raise ValueError(
            f"The policy's parameters are {sorted(state_dict)}, expected 'mlp.0.weight' and so on"
            " among them, as in rsl_rl's models."
        )
    return max(layers, key=lambda name: int(name.split(".")[1]))


def _check_complete(model_cfg: Mapping[str, Any], part: str) -> None:
    """Check that no option of a model falls back to a default that training may have overridden.

    The parameters show all options of rsl_rl's classes except two.

    Raises:
        ValueError: If one does.
    """
    missing = [name for name in ("activation", "distribution_cfg") if name not in model_cfg]
    model_class: Any = resolve_callable(model_cfg["class_name"])
    for kind in getattr(model_class, "__mro__", ()):
        if "__init__" in vars(kind) and not is_within(f"{kind.__module__}.", ("rsl_rl", "torch")):
            parameters = inspect.signature(kind.__init__).parameters.values()
            optional = [each.name for each in parameters if each.default is not each.empty]
            missing += [name for name in optional if model_cfg.get(name) is None]
    if missing:
        raise ValueError(
            f"{part}.{missing[0]} is missing, expected the training's: neither the checkpoint nor"
            " its parameters show it. Write it into the YAML file that --agent names."
        )


def _set_fields(model_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Drop unset options from a model's config: mjlab's class has the fields of every model."""
    is_rnn = model_cfg.get("rnn_type") is not None
    return {
        name: value
        for name, value in model_cfg.items()
        if value is not None and (is_rnn or not name.startswith("rnn_"))
    }


def _check_classes(
    model_cfg: Mapping[str, Any], part: str, checkpoint: Path, trust: Sequence[str]
) -> None:
    """Check that a model's config names only classes of trusted packages.

    A name is resolved only if its module belongs to a trusted package. The resolved object has to
    belong to one too: ``rsl_rl.utils:torch.hub.load`` does not.

    Raises:
        ValueError: If a class is not trusted.
    """
    if trust:
        sys.path.append(str(Path.cwd()))  # after all installed packages
    try:
        named = list(_named_classes({"class_name": None, **model_cfg}, part))
    except RecursionError as error:  # YAML can contain itself
        raise ValueError(f"{part} is nested too deep, expected a mapping of options.") from error
    for place, name in named:
        refusal = _refusal(name, trust)
        if refusal is not None and name not in _registered_classes(checkpoint):
            raise ValueError(f"{place} is {name!r}, expected {refusal}")


def _named_classes(config: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the key and the name of every class in a config, at any depth."""
    if isinstance(config, (list, tuple)):
        config = dict(enumerate(config))
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key == "class_name":
            yield f"{place}.class_name", value
        else:
            yield from _named_classes(value, f"{place}.{key}")


def _refusal(name: Any, trust: Sequence[str]) -> str | None:
    """Return what is expected in place of a name, and how to allow it; None if it is trusted."""
    path = name.replace(":", ".") if isinstance(name, str) else ""
    if not is_dotted(path):
        return "a name such as 'RNNModel' or 'package.module:Class'."
    if path.startswith("__main__."):
        return "a class of a module: move it out of the script that trains."
    origin = path if "." in path else "rsl_rl."  # where rsl_rl looks for a simple name
    known = "a model or distribution of rsl_rl or rsl_tbptt"
    if is_within(origin, (*PACKAGES, *trust)):
        try:
            found = resolve_callable(name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            return f"one that can be imported: {error}."
        origin = f"{getattr(found, '__module__', None)}."
        is_known = isinstance(found, type) and issubclass(found, (MLPModel, Distribution))
        if is_within(origin, trust) or (is_known and is_within(origin, PACKAGES)):
            return None
        if is_within(origin, PACKAGES):
            return f"{known}."
        known = f"{known}, and it is from {origin[:-1]}"
    return (
        f"{known}: other code runs only if you trust its package. If you do, add --trust"
        f" {origin.split('.')[0]}, in Python trust=[...]."
    )


def _registered_classes(checkpoint: Path) -> list[Any]:
    """Return the classes that the agent of a checkpoint's registered task names."""
    try:
        platform = load_platform(platform_of(checkpoint))
        agent = platform.registered_agent(platform.find_trained(checkpoint))
    except Exception:  # the task is unknown, or its package is not installed
        return []
    return [name for _, name in _named_classes(agent, "")]
