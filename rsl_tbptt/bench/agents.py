"""Cases of the benchmark that are agents of others: read from Isaac Lab's configs, or described.

What trains comes from the agent's own config class: networks, lengths, epochs, mini-batches, losses
and optimiser. From the environment's config class come the number of environments and how long an
episode may last, and widths of observations and actions where it says them. A manager-based one
does not: its simulator counts the terms once the robot is loaded, so the caller tells the widths.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from typing import TYPE_CHECKING, Any

from rsl_rl.algorithms import Distillation
from rsl_rl.models import RNNModel

from rsl_tbptt.bench.case import TRAINED, Case

if TYPE_CHECKING:
    from isaaclab_rl.rsl_rl import RslRlBaseRunnerCfg

MEMORY = ("rnn_type", "rnn_hidden_dim", "rnn_num_layers")
_LENGTHS = ("num_learning_epochs", "num_mini_batches", "gradient_length")
_OF_CASES = ("share_cnn_encoders", "use_mixed_precision")
"""Options that the algorithm's constructor does not take, or a case has as its own."""


@dataclass(frozen=True, kw_only=True)
class Widths:
    """What a robot sees and does."""

    policy: int
    critic: int | None = None
    """Of the critic's own group, None where it sees the policy's."""
    num_actions: int


def described(
    task: str = "",
    agent: str = "",
    widths: str | Mapping[str, int] = "",
    defaults: Mapping[str, int] | None = None,
    case: Mapping[str, Any] | None = None,
) -> Case:
    """Make a case of an entry of a file, in one of three ways.

    Args:
        task: A task of Isaac Lab that has the agent.
        agent: The agent's key there.
        widths: A task that declares what its robots see and do, or the fields of :class:`Widths`.
        defaults: Arguments of :func:`default_distillation`.
        case: Fields of a case.

    Returns:
        The case.

    Raises:
        ImportError: If Isaac Lab is missing, whose agent is meant.
        ValueError: If there is no such agent, or it has no memory.
    """
    if case is not None:
        return Case(**case)
    if defaults is not None:
        return default_distillation(**defaults)
    known = widths_of(widths) if isinstance(widths, str) else Widths(**widths)
    return isaac_lab_case(task, agent, known)


def widths_of(task: str) -> Widths:
    """Read the widths that an environment's config declares.

    Args:
        task: Name of a task, a direct one, or one for inference outside of the simulator.

    Returns:
        The widths.

    Raises:
        ImportError: If Isaac Lab is missing.
        ValueError: If the config does not tell.
    """
    cfg = _load(task, "env_cfg_entry_point")
    spaces = [getattr(cfg, f"{name}_space", None) for name in ("observation", "state", "action")]
    match spaces:
        case [int(policy), int(critic), int(num_actions)]:
            pass
        case _:
            raise ValueError(
                f"spaces of {task} are {spaces}, expected integers: name another task."
            )
    return Widths(policy=policy, critic=critic, num_actions=num_actions)


def isaac_lab_case(task: str, key: str, widths: Widths) -> Case:
    """Read an agent of Isaac Lab.

    Args:
        task: A task that has it.
        key: Its key in the task's registration, such as ``rsl_rl_cfg_entry_point``.
        widths: What its robots see and do.

    Returns:
        A case with the task's own number of environments. Episodes end by time-outs alone.

    Raises:
        ImportError: If Isaac Lab is missing.
        ValueError: If it has no such agent, or the agent no memory.
    """
    from isaaclab.utils import to_dict
    from isaaclab_rl.rsl_rl import handle_deprecated_rsl_rl_cfg

    agent, env = _load(task, key), _load(task, "env_cfg_entry_point")
    if not _has_memory(agent):
        raise ValueError(f"agent is {key} of {task}, expected one with memory.")
    cfg = to_dict(handle_deprecated_rsl_rl_cfg(agent, version("rsl-rl-lib")))
    settings = cfg["algorithm"]
    kind = "ppo" if settings.pop("class_name") == "PPO" else "distillation"
    roles = (*TRAINED[kind], *(["teacher"] if kind == "distillation" else []))
    models = {role: cfg[role] for role in roles}
    memory = {name: models[roles[0]][name] for name in MEMORY}
    for role, options in models.items():
        del options["class_name"]
        if role != "teacher":  # what the case says of all models that are trained
            models[role] = {k: v for k, v in options.items() if memory.get(k) != v}
    lengths = {name: settings.pop(name) for name in _LENGTHS if name in settings}
    for name in _OF_CASES:
        settings.pop(name, None)
    obs_dims = {"policy": widths.policy}
    if widths.critic is not None:
        obs_dims["critic"] = widths.critic
    return Case(
        algorithm=kind,
        num_envs=env.scene.num_envs,
        num_steps=agent.num_steps_per_env,
        **{"gradient_length": agent.num_steps_per_env} | lengths,
        **memory,
        num_actions=widths.num_actions,
        obs_dims=obs_dims,
        obs_groups={role: cfg["obs_groups"][role] for role in roles},
        models=models,
        settings=settings,
        done_rate=env.decimation * env.sim.dt / env.episode_length_s,
    )


def default_distillation(num_envs: int, num_steps: int) -> Case:
    """Return what rsl_rl's Distillation and RNNModel do where nobody says otherwise.

    Args:
        num_envs: Number of environments N.
        num_steps: Steps of a rollout T.

    Returns:
        The case; observations, actions and teacher are those of any case.
    """
    algorithm, model = (
        {name: option.default for name, option in inspect.signature(cls).parameters.items()}
        for cls in (Distillation, RNNModel)
    )
    options = ("hidden_dims", "activation", "obs_normalization")
    return Case(
        algorithm="distillation",
        num_envs=num_envs,
        num_steps=num_steps,
        **{name: algorithm[name] for name in ("num_learning_epochs", "gradient_length")},
        **{name: model[name] for name in MEMORY},
        models={"student": {name: model[name] for name in options}},
        settings={
            name: algorithm[name]
            for name in ("learning_rate", "max_grad_norm", "loss_type", "optimizer")
        },
    )


def _load(task: str, key: str) -> Any:
    """Return a config object of a registered task."""
    import isaaclab_tasks  # noqa: F401  # registers
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry

    with redirect_stdout(StringIO()):  # it says what it reads
        return load_cfg_from_registry(task, key)


def _has_memory(agent: RslRlBaseRunnerCfg) -> bool:
    return any(hasattr(getattr(agent, role, None), MEMORY[0]) for role in ("actor", "student"))
