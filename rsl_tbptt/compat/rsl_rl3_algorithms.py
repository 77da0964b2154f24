"""rsl_rl 3's PPO and Distillation with the constructors of rsl_rl 5: two models and a storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_optimizer


class _OfPolicy:
    """Methods that rsl_rl 5's runners call; rsl_rl 3's runner saves and loads itself."""

    policy: Any

    def train_mode(self) -> None:
        """Set all networks to training; a policy keeps its teacher in evaluation mode."""
        self.policy.train()

    def save(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load nothing."""
        return False


class PPO(_OfPolicy, algorithms.PPO):
    """rsl_rl 3's PPO for two models of one policy."""

    def __init__(
        self,
        actor: Any,
        critic: Any,
        storage: RolloutStorage,
        *,
        optimizer: str,
        learning_rate: float,
        **arguments: Any,
    ) -> None:
        """Take actor and critic of one ActorCritic, a storage, and rsl_rl 3's other arguments."""
        self.policy = actor.policy
        super().__init__(self.policy, learning_rate=learning_rate, **arguments)
        optimizer_class: Any = resolve_optimizer(optimizer)  # rsl_rl 3 itself supports only Adam
        self.optimizer = optimizer_class(self.policy.parameters(), lr=learning_rate)
        self.actor, self.critic, self.storage = actor, critic, storage


class Distillation(_OfPolicy, algorithms.Distillation):
    """rsl_rl 3's Distillation for two models of one policy."""

    def __init__(
        self, student: Any, teacher: Any, storage: RolloutStorage, **arguments: Any
    ) -> None:
        """Take both of one StudentTeacher, a storage, and rsl_rl 3's other arguments."""
        self.policy = student.policy
        super().__init__(self.policy, **arguments)
        self.student, self.teacher, self.storage = student, teacher, storage

    def __setattr__(self, name: str, value: Any) -> None:
        """Store in the policy whether its teacher was loaded, since the runner reads it there."""
        if name == "teacher_loaded":
            self.policy.loaded_teacher = value
        super().__setattr__(name, value)


class ModelStorage(RolloutStorage):
    """rsl_rl 3's storage with the names of rsl_rl 5."""

    # Attributes that rsl_rl 5 has not; type checking uses its types.
    add_transitions: Callable[[RolloutStorage.Transition], None]
    mu: torch.Tensor
    sigma: torch.Tensor

    def add_transition(self, transition: RolloutStorage.Transition) -> None:
        """Store one step of all environments."""
        self.add_transitions(transition)

    @property
    def distribution_params(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the actions, (T, N, A) each."""
        return self.mu, self.sigma


def keep_with_optimizer(
    optimizer: torch.optim.Optimizer,
    save: Callable[[], dict[str, Any]],
    load: Callable[[dict[str, Any]], object],
    replaces: Callable[[], bool] = lambda: False,
) -> None:
    """Keep an algorithm's own state in the optimiser's state dict.

    rsl_rl 3's runner saves only the policy and optimiser of an algorithm. torch ignores extra keys
    next to the optimiser's own, so plain rsl_rl loads the checkpoint, too.

    Args:
        optimizer: The optimiser.
        save: Returns the algorithm's state, under keys that the optimiser does not have.
        load: Restores it, after the optimiser's state; it is empty if rsl_rl wrote the checkpoint.
        replaces: Whether the state dict to load belongs to other networks. The optimiser is not
            changed then.
    """
    loaded: dict[str, Any] = {}

    def write(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {**state_dict, **save()}

    def before(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        state_dict = optimizer.state_dict() if replaces() else state_dict
        loaded.clear()
        loaded.update({k: v for k, v in state_dict.items() if k not in ("state", "param_groups")})
        return state_dict

    def after(_: torch.optim.Optimizer) -> None:
        load(dict(loaded))

    optimizer.register_state_dict_post_hook(write)
    # First of all hooks, so that their changes apply to the replacement, too.
    optimizer.register_load_state_dict_pre_hook(before, prepend=True)
    optimizer.register_load_state_dict_post_hook(after)
