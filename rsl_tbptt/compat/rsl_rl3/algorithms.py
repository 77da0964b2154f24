"""rsl_rl 3's PPO and Distillation, constructed as rsl_rl 5's are: from two models and a storage."""

from __future__ import annotations

from typing import Any

from rsl_rl import algorithms
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_optimizer


class PPO(algorithms.PPO):
    """rsl_rl 3's PPO of two models of one policy."""

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
        self.policy: Any = actor.policy
        super().__init__(self.policy, learning_rate=learning_rate, **arguments)
        optimizer_class: Any = resolve_optimizer(optimizer)  # rsl_rl 3 knows Adam only
        self.optimizer = optimizer_class(self.policy.parameters(), lr=learning_rate)
        self.actor, self.critic, self.storage = actor, critic, storage

    def train_mode(self) -> None:
        """Set all networks to training."""
        self.policy.train()

    def save(self) -> dict[str, Any]:
        """Return nothing: rsl_rl 3's runner saves policy and optimiser itself."""
        return {}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load nothing: rsl_rl 3's runner loads policy and optimiser itself."""
        return False


class Distillation(algorithms.Distillation):
    """rsl_rl 3's Distillation of two models of one policy."""

    def __init__(
        self, student: Any, teacher: Any, storage: RolloutStorage, **arguments: Any
    ) -> None:
        """Take both of one StudentTeacher, a storage, and rsl_rl 3's other arguments."""
        self.policy: Any = student.policy
        super().__init__(self.policy, **arguments)
        self.student, self.teacher, self.storage = student, teacher, storage

    def __setattr__(self, name: str, value: Any) -> None:
        """Tell the policy whether its teacher was loaded: it is what the runner asks."""
        if name == "teacher_loaded":
            self.policy.loaded_teacher = value
        super().__setattr__(name, value)

    def train_mode(self) -> None:
        """Set all networks to training; the policy keeps its teacher in evaluation."""
        self.policy.train()

    def save(self) -> dict[str, Any]:
        """Return nothing: rsl_rl 3's runner saves policy and optimiser itself."""
        return {}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load nothing: rsl_rl 3's runner loads policy and optimiser itself."""
        return False
