"""Teacher and student in one PPO training: copy this file next to your task, and name it.

``extensions=[{"class_name": "concurrent_teacher:ConcurrentTeacher", "share": 0.25, "coef": 1.0}]``
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import MLP
from torch import nn

from rsl_tbptt.extensions import Extension, OptionGroup, between, positive


class ConcurrentTeacher(Extension):
    """Lets some environments act as a teacher, whose latent the memory of the others learns.

    The teacher sees what the critic sees::

        critic's observations -> encoder ---------------------+
                                                              v
        actor's observations -> memory -> first layer ----> latent -> other layers -> action

    PPO trains both ways. The first layer and those after it are the actor's MLP, so the latent's
    size is ``actor.hidden_dims[0]``. Checkpoints, evaluations, exports and bundles have the
    student as their actor, as after any training.

    References:
        Wang et al. (2024), arXiv 2405.10830: concurrent teacher-student reinforcement learning.
    """

    @dataclass(kw_only=True)
    class Options(OptionGroup):
        """Who acts, and how the student learns from the teacher."""

        share: Annotated[float, between(0, 1)] = 0.25
        """Share of the environments that act as the teacher, spread evenly."""

        coef: Annotated[float, positive(0)] = 1.0
        """Weight of the squared distance of the student's latent from the teacher's, relative to
        the teacher's, which it does not change: the mean over the student's samples."""

    def __init__(self, options: Options, algorithm: Any) -> None:
        """Build the encoder.

        Raises:
            ValueError: If the algorithm is no PPO, or the student has no environment.
        """
        super().__init__(options, algorithm)
        if not hasattr(algorithm, "critic"):
            raise ValueError("ConcurrentTeacher is set in a distillation, expected it in PPO.")
        num_envs, device = algorithm.storage.num_envs, algorithm.storage.dones.device
        num_teachers = [int(options.share * num) for num in range(num_envs + 1)]
        self.is_teacher = torch.tensor(num_teachers, device=device).diff() > 0
        num_students = num_envs - num_teachers[-1]
        if num_students == 0:
            raise ValueError(
                f"share is {options.share}, expected less: of {num_envs} environments it leaves"
                " none to the student."
            )
        self.per_student = num_envs / num_students
        self.first_layer, *others = algorithm.get_policy().mlp
        self.other_layers = nn.Sequential(*others)
        width = self._seen(algorithm.storage.observations[0]).shape[-1]
        self.encoder = MLP(width, self.first_layer.out_features, [256, 128])
        self.modules = {"encoder": self.encoder}

    def begin_rollout(self) -> None:
        """Check that the teacher can act.

        Raises:
            ValueError: If the actor is compiled, which would ignore the teacher.
        """
        if self.algorithm.actor is not self.algorithm.models["actor"]:
            raise ValueError(
                "The actor is compiled, which would ignore the teacher: set torch_compile_mode to"
                " None."
            )

    def act(self, obs: Any, step: int) -> None:
        """Put the teacher's latent, (N, L), in its place when the actor acts next."""
        latent = self.encoder(self._seen(obs))

        def replace(layer: nn.Module, inputs: Any, of_student: torch.Tensor) -> torch.Tensor:
            hook.remove()
            return torch.where(self.is_teacher.unsqueeze(-1), latent, of_student)

        hook = self.first_layer.register_forward_hook(replace)

    def labels(self) -> dict[str, torch.Tensor]:
        """Return what the teacher sees, (T, N, D), and where it acts, (T, N)."""
        obs = self.algorithm.storage.observations
        seen = self._seen(obs.flatten()).unflatten(0, obs.batch_size)
        return {"seen": seen, "is_teacher": self.is_teacher.expand(obs.batch_size)}

    def outputs(self, policy: Any, samples: Any) -> torch.Tensor:
        """Return the outputs of the MLP, (K, n, A), for the latents of those who acted."""
        of_student, of_teacher = self.first_layer(policy.latent), self.encoder(samples["seen"])
        self.latents = of_student, of_teacher.detach()
        is_teacher = samples["is_teacher"].unsqueeze(-1)
        return self.other_layers(torch.where(is_teacher, of_teacher, of_student))

    def losses(self, policy: Any, samples: Any) -> Iterator[Any]:
        """Yield the distance of the student's latent. Shape: (K, n)."""
        of_student, of_teacher = self.latents
        size = of_teacher.square().mean(-1).clamp(min=1e-6)
        error = self.per_student * (of_student - of_teacher).square().mean(-1) / size
        yield "latent", self.options.coef, torch.where(samples["is_teacher"], 0.0, error)

    def _seen(self, obs: Any) -> torch.Tensor:
        """Return the critic's observations, normalised, (N, D)."""
        return MLPModel.get_latent(self.algorithm.models["critic"], obs)
