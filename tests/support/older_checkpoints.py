"""Checkpoints in the form of rsl_rl 1 to 3, made from models of rsl_rl 5."""

from collections.abc import Mapping
from typing import Any

NORMALIZERS = {
    **{"actor": "obs_norm_state_dict", "critic": "critic_obs_norm_state_dict"},
    **{"student": "obs_norm_state_dict", "teacher": "privileged_obs_norm_state_dict"},
}


def names_in_policy(role: str) -> dict[str, str]:
    """Return how names of a model begin, and how those of its network in a policy do."""
    return {
        "mlp.": f"{role}.",
        "rnn.": f"memory_{role[0]}.",
        "obs_normalizer.": f"{role}_obs_normalizer.",
        "distribution.std_param": "std",
    }


def as_policy(models: Mapping[str, Any], *, separate: bool = False) -> dict[str, Any]:
    """Return a checkpoint with models, by role, as networks of one policy.

    Args:
        models: Actor and critic, or student and teacher.
        separate: Whether normalisers stand next to the policy, as in rsl_rl 2.
    """
    policy: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {"model_state_dict": policy, "optimizer_state_dict": {}}
    for role, model in models.items():
        names = names_in_policy(role)
        for key, value in model.state_dict().items():
            (begin,) = (each for each in names if key.startswith(each))
            if separate and begin == "obs_normalizer.":
                own = checkpoint.setdefault(NORMALIZERS[role], {})
                if not key.endswith("count"):  # which those did not save
                    own[key.removeprefix(begin)] = value
            else:
                policy[names[begin] + key.removeprefix(begin)] = value
    return {**checkpoint, "iter": 3, "infos": None}
