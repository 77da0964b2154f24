"""The names of models in rsl_rl 5's checkpoints and configs."""

from collections.abc import Mapping
from typing import Any

import torch

from rsl_tbptt.compat.rsl_rl3_checkpoints import as_models


def teacher_state_dict(checkpoint: Mapping[str, Any], source: str) -> Mapping[str, torch.Tensor]:
    """Return the teacher's parameters: the teacher of a distillation, or the actor of a PPO run.

    They have their trained shapes. ``checkpoint`` may be one of rsl_rl 1 to 3.

    Raises:
        ValueError: If ``checkpoint`` has neither; ``source`` names it in the message. Or if it has
            a policy of rsl_rl 1 to 3 that cannot be read.
    """
    checkpoint, _ = as_models(dict(checkpoint))
    for key in ("teacher_state_dict", "actor_state_dict"):
        if checkpoint.get(key):
            return checkpoint[key]
    raise ValueError(
        f"{source} has neither 'teacher_state_dict' nor 'actor_state_dict', only"
        f" {sorted(checkpoint)}: expected a checkpoint of PPO or distillation of rsl_rl 5."
    )


def config_advice(key: str, role: str, in_checkpoint: bool) -> str:
    """Return the setting of the config that has to change for the key to agree."""
    if key.startswith("distribution"):
        verb = "set" if in_checkpoint else "remove"
        return f"{verb} '{role}.distribution_cfg' in the config, as when it was trained."
    if key.startswith("obs_normalizer"):
        return f"set '{role}.obs_normalization' to {in_checkpoint} in the config."
    if key.startswith("rnn"):
        return (
            f"set '{role}.class_name' to '{'RNNModel' if in_checkpoint else 'MLPModel'}', and"
            " 'rnn_type' and 'rnn_num_layers' as when it was trained."
        )
    return f"give '{role}' in the config the architecture it was trained with."
