"""What a checkpoint has to hold before PPO loads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict

from rsl_tbptt.checkpoints.reading import check_matches
from rsl_tbptt.checkpoints.trained_models import check_fits


def check_checkpoint(
    models: Mapping[str, Any], checkpoint: Mapping[str, Any], obs: TensorDict, strict: bool
) -> None:
    """Check that a PPO checkpoint holds what is wanted of it.

    Args:
        models: What is to be loaded, by role: "actor", "critic" and "rnd".
        checkpoint: The checkpoint.
        obs: Observations of any batch size.
        strict: Whether parameters must match exactly.

    Raises:
        ValueError: If something is missing or does not fit.
    """
    for role, model in models.items():
        key = f"{role}_state_dict"
        if key not in checkpoint:
            raise ValueError(
                f"The checkpoint lacks '{key}', it holds {sorted(checkpoint)}: expected one of"
                " PPO or distillation of rsl_rl 5."
            )
        if strict and role == "rnd":
            check_matches(model, checkpoint[key], role)
        elif strict:
            check_fits(model, checkpoint[key], role, obs, checkpoint)
