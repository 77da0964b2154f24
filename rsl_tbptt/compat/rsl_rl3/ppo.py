"""TbpttPPO on an ActorCritic or ActorCriticRecurrent."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_optimizer
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.ppo import algorithm as ppo
from rsl_tbptt.checkpoints.reading import check_matches
from rsl_tbptt.compat.rsl_rl3.checkpoints import advice, keep_with_optimizer, network_state
from rsl_tbptt.compat.rsl_rl3.models import model_of
from rsl_tbptt.compat.rsl_rl3.storage import ModelStorage
from rsl_tbptt.compat.versions import MLPModel

_NEED_A_TEACHER = {"teacher_cfg": None, "teacher_kl_coef": 0.0, "teacher_kl_updates": None}


class PpoOfModels(PPO):
    """rsl_rl 3's PPO, constructed as rsl_rl 5's is: from two models and a storage."""

    policy: Any
    """The ActorCritic they are networks of, which is there before them."""

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        storage: RolloutStorage,
        *,
        optimizer: str,
        learning_rate: float,
        **arguments: Any,
    ) -> None:
        """Take the models of ``self.policy`` and a storage, and what rsl_rl 3 takes beside them."""
        super().__init__(self.policy, learning_rate=learning_rate, **arguments)
        optimizer_class: Any = resolve_optimizer(optimizer)  # rsl_rl 3 knows Adam only
        self.optimizer = optimizer_class(self.policy.parameters(), lr=learning_rate)
        self.actor, self.critic, self.storage = actor, critic, storage

    def save(self) -> dict[str, Any]:
        """Return nothing: rsl_rl 3's runner saves policy and optimiser itself."""
        return {}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load nothing: rsl_rl 3's runner loads policy and optimiser itself."""
        return False


class TbpttPPO(ppo.TbpttPPO, PpoOfModels):
    """:class:`rsl_tbptt.algorithms.TbpttPPO` for rsl_rl 3.1.2's runner.

    A drop-in for that release's PPO: same policies, checkpoints and runner. As there, the gradient
    of actor and critic is clipped by its norm over both. A checkpoint of a distillation that the
    runner loads makes its student the actor; there is no teacher to pull towards.
    """

    def __init__(
        self,
        policy: nn.Module,
        *,
        device: str = "cpu",
        multi_gpu_cfg: dict | None = None,
        **options: Any,
    ) -> None:
        """Keep the arguments until ``init_storage``, which the runner calls next.

        Args:
            policy: ActorCritic or ActorCriticRecurrent.
            device: Device of the update.
            multi_gpu_cfg: rsl_rl's description of the processes, or None for one process.
            **options: Fields of :class:`PpoOptions`, ``rnd_cfg`` and ``symmetry_cfg``.

        Raises:
            NotImplementedError: If an option needs a teacher's model.
            ValueError: If an option is set that has no effect with symmetry.
        """
        for name, default in _NEED_A_TEACHER.items():
            if options.get(name, default) != default:
                raise NotImplementedError(
                    f"{name} is {options[name]!r}, expected {default!r} with rsl_rl 3: its runner"
                    " builds no model of the teacher for PPO."
                )
        if options.get("symmetry_cfg") is not None and options.get("use_mixed_precision"):
            raise ValueError(
                "use_mixed_precision is True, expected False with symmetry_cfg: rsl_rl 3's own"
                " update mirrors the samples then, in full precision."
            )
        self.policy = policy.to(device)
        self._arguments = {"device": device, "multi_gpu_cfg": multi_gpu_cfg, **options}
        self._loaded_student = False

    def init_storage(
        self,
        training_type: str,
        num_envs: int,
        num_transitions_per_env: int,
        obs: TensorDict,
        actions_shape: list[int] | tuple[int, ...],
    ) -> None:
        """Make the storage and with it everything else.

        Args:
            training_type: "rl".
            num_envs: Number of environments N.
            num_transitions_per_env: Steps of a rollout T.
            obs: Observations of all environments, batch size (N,).
            actions_shape: (A,).

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another.
            NotImplementedError: If the policy is not one of rsl_rl's.
        """
        device = self._arguments["device"]
        sizes = (num_envs, num_transitions_per_env)
        storage = ModelStorage(training_type, *sizes, obs, actions_shape, device)
        actor, critic = model_of(self.policy, "actor"), model_of(self.policy, "critic")
        super().__init__(actor, critic, storage, **self._arguments)
        self.policy.register_load_state_dict_pre_hook(self._before_policy_is_loaded)
        keep_with_optimizer(
            self.optimizer, self.save, self._load_own, replaces=lambda: self._loaded_student
        )

    def update(self) -> dict[str, float]:
        """Train actor and critic on the rollout and clear the storage.

        Returns:
            What :class:`rsl_tbptt.algorithms.TbpttPPO` returns, with ``value`` under rsl_rl 3's
            name, ``value_function``.
        """
        metrics = super().update()
        return {"value_function" if name == "value" else name: v for name, v in metrics.items()}

    def _clip_gradients(self) -> list[torch.Tensor]:
        """Clip actor and critic together; return their norms before, shape () each."""
        gradients = [
            [p.grad for p in parameters if p.grad is not None]
            for parameters in self._parameters_of_models
        ]
        norms = [nn.utils.get_total_norm(grads).to(self.device) for grads in gradients]
        nn.utils.clip_grad_norm_(self._parameters(), self.max_grad_norm)
        return norms

    def _load_own(self, loaded: dict[str, Any]) -> None:
        self.load(loaded, {}, strict=False)

    def _before_policy_is_loaded(
        self,
        policy: nn.Module,
        state_dict: dict[str, Any],
        *_: object,
    ) -> None:
        """Make the student of a distillation the actor and let the policy load itself then.

        Raises:
            ValueError: If the student does not fit. Nothing is changed then.
        """
        self._loaded_student = any(key.startswith("student.") for key in state_dict)
        if self._loaded_student:
            student = network_state(state_dict, "student")
            check_matches(self._raw_actor, student, "actor", advice)
            self._fine_tuning.start({"student_state_dict": student}, strict=True)
            state_dict.clear()
            state_dict.update(policy.state_dict())
