"""Names in checkpoints and configs of rsl_rl 5, and checkpoints of rsl_rl 1 to 3 in that form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

Role = Literal["actor", "critic", "student", "teacher"]

_NORMALIZERS: dict[Role, tuple[str, ...]] = {
    "actor": ("obs_norm_state_dict",),
    "student": ("obs_norm_state_dict",),
    "critic": ("critic_obs_norm_state_dict", "privileged_obs_norm_state_dict"),
    "teacher": ("privileged_obs_norm_state_dict",),
}
"""Normalisers of rsl_rl 2, which stand next to the policy; rsl_rl 3's belong to it."""

_UNKNOWN_COUNT = 10**8
"""Samples of a normaliser that did not save their number; with so many it hardly changes."""


def network_state(policy_state: Mapping[str, Any], role: Role) -> dict[str, torch.Tensor]:
    """Return one network's part of a policy's state dict, with the names of its model.

    Args:
        policy_state: The result of ``policy.state_dict()``.
        role: The network's role.

    Returns:
        Parameters and buffers under the model's names, in the policy's shapes; empty if the
        policy lacks the network.
    """
    if not any(key.startswith(f"{role}.") for key in policy_state):
        return {}
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


def as_models(
    checkpoint: dict[str, Any], load_cfg: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return a checkpoint of rsl_rl 1 to 3 in the form of rsl_rl 5; others are returned unchanged.

    Models keep their parameters and normalisers. The optimiser's state, whose order is another one,
    the iteration and RND are left out.

    Args:
        checkpoint: A checkpoint of any release.
        load_cfg: Parts to load, or None for all.

    Returns:
        The checkpoint, and the parts to load from it.

    Raises:
        ValueError: If the policy is none of ActorCritic, StudentTeacher and the recurrent ones.
    """
    policy_state = checkpoint.get("model_state_dict")
    if policy_state is None:
        return checkpoint, load_cfg
    models: dict[Role, dict[str, torch.Tensor]] = {
        role: state for role in _NORMALIZERS if (state := network_state(policy_state, role))
    }
    num_known = sum(map(len, models.values()))
    if set(models) not in ({"actor", "critic"}, {"student", "teacher"}) or num_known < len(
        policy_state
    ):
        raise ValueError(
            f"The checkpoint has a policy with {sorted(policy_state)}, expected rsl_rl 1 to 3's"
            " ActorCritic, StudentTeacher or a recurrent one of them: other policies cannot become"
            " models of rsl_rl 5. Train with the release that wrote it."
        )
    for role, state in models.items():
        for name in _NORMALIZERS[role]:
            normalizer = dict(checkpoint.get(name, {}))
            if normalizer:
                normalizer.setdefault("count", torch.tensor(_UNKNOWN_COUNT))
            state.update({f"obs_normalizer.{key}": value for key, value in normalizer.items()})
    parts = ("actor", "critic", "teacher", *(("student",) if "student" in models else ()))
    load_cfg = {part: True for part in parts if load_cfg is None or load_cfg.get(part)}
    return {
        **{f"{role}_state_dict": state for role, state in models.items()},
        **{key: checkpoint[key] for key in ("iter", "infos") if key in checkpoint},
    }, load_cfg


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


def modules_of_extension(saved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the state dicts of an extension's modules by name, from its entry of a checkpoint.

    Auxiliary heads of earlier versions were described next to their layers.
    """
    if "heads" not in saved:
        return saved.get("modules", {})
    heads = {name: dict(head) for name, head in saved["heads"].items()}
    return {name: {**head.pop("state_dict"), "_extra_state": head} for name, head in heads.items()}


def config_advice(key: str, role: str, in_checkpoint: bool) -> str:
    """Return the setting of the model's config that has to change for the key to agree."""
    if key.startswith("teachers."):
        return "several teachers are a controller of your own now, with which the file loads."
    if key.startswith("distribution"):
        verb = "set" if in_checkpoint else "remove"
        return f"{verb} distribution_cfg in the {role}'s config, as when it was trained."
    if key.startswith("obs_normalizer"):
        return f"set obs_normalization to {in_checkpoint} in the {role}'s config."
    if key.startswith("rnn"):
        return (
            f"set class_name to '{'RNNModel' if in_checkpoint else 'MLPModel'}' in the {role}'s"
            " config, and rnn_type and rnn_num_layers as when it was trained."
        )
    return f"give the {role}'s config the architecture it was trained with."
