"""Checkpoints of rsl_rl 3: one state dict of the whole policy, one of the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rsl_tbptt.compat.rsl_rl3.models import Role


def network_state(policy_state: Mapping[str, Any], role: Role) -> dict[str, torch.Tensor]:
    """Return one network's part of a policy's state dict, under the names of its model.

    Args:
        policy_state: What ``policy.state_dict()`` returned.
        role: Which network.

    Returns:
        Parameters and buffers by the names of the model, in the policy's shapes; empty if the
        policy lacks the network.
    """
    renamed = {
        f"{role}.": "mlp.",
        f"{role}_obs_normalizer.": "obs_normalizer.",
        f"memory_{role[0]}.": "rnn.",
    }
    if role in ("actor", "student"):
        renamed |= {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}
    return {
        new + key.removeprefix(old): value
        for key, value in policy_state.items()
        for old, new in renamed.items()
        if (key.startswith(old) if old.endswith(".") else key == old)
    }


def teacher_state_dict(checkpoint: Mapping[str, Any], source: str) -> dict[str, torch.Tensor]:
    """Return the teacher's parameters: the teacher of a distillation, or the actor of a PPO run.

    Args:
        checkpoint: What a runner of rsl_rl 3 saved.
        source: Names the checkpoint in the message.

    Returns:
        Parameters and buffers by the names of the teacher's model, in the policy's shapes; the
        teacher has no distribution.

    Raises:
        ValueError: If ``checkpoint`` has neither.
    """
    policy_state = checkpoint.get("model_state_dict", {})
    for role in ("teacher", "actor"):
        state = network_state(policy_state, role)
        if state:
            return {key: v for key, v in state.items() if not key.startswith("distribution.")}
    raise ValueError(
        f"{source} has neither 'teacher' nor 'actor' in its 'model_state_dict', it holds"
        f" {sorted(checkpoint)}: expected a checkpoint of PPO or distillation of rsl_rl 3."
    )


def config_advice(key: str, role: str, in_checkpoint: bool) -> str:
    """Return which setting of an rsl_rl 3 config makes a model's key agree with a checkpoint."""
    if key.startswith("distribution"):
        return "set 'policy.noise_std_type' and 'policy.state_dependent_std' as in its training."
    if key.startswith("obs_normalizer"):
        return f"set 'policy.{role}_obs_normalization' to {in_checkpoint} in the config."
    if key.startswith("rnn"):
        if role == "teacher":
            return f"set 'policy.teacher_recurrent' to {in_checkpoint} in the config."
        return "give the policy the class and 'rnn_type' and 'rnn_num_layers' of its training."
    return f"set 'policy.{role}_hidden_dims' in the config as in its training."


def keep_with_optimizer(
    optimizer: torch.optim.Optimizer,
    save: Callable[[], dict[str, Any]],
    load: Callable[[dict[str, Any]], object],
    replaces: Callable[[], bool] = lambda: False,
) -> None:
    """Let what an algorithm has to remember travel in the optimiser's state dict.

    rsl_rl 3's runner saves nothing of an algorithm but policy and optimiser. Further keys beside
    the optimiser's own are ignored by torch, so the checkpoint loads in plain rsl_rl too.

    Args:
        optimizer: The optimiser.
        save: Returns what to remember, under keys that the optimiser does not have.
        load: Takes it back, after the optimiser's state; empty where rsl_rl wrote the checkpoint.
        replaces: Whether the state dict to load belongs to other networks; the optimiser then
            stays as it is.
    """
    own_keys = {"state", "param_groups"}
    loaded: dict[str, Any] = {}

    def write(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {**state_dict, **save()}

    def before(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        state_dict = optimizer.state_dict() if replaces() else state_dict
        loaded.clear()
        loaded.update({key: v for key, v in state_dict.items() if key not in own_keys})
        return state_dict

    def after(_: torch.optim.Optimizer) -> None:
        load(dict(loaded))

    optimizer.register_state_dict_post_hook(write)
    # First of all: what other hooks change has to be changed in the replacement too.
    optimizer.register_load_state_dict_pre_hook(before, prepend=True)
    optimizer.register_load_state_dict_post_hook(after)
