"""PPO's policy loss per sample: surrogate, entropy bonus and pull towards a teacher."""

from __future__ import annotations

import torch

from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import losses

Params = tuple[torch.Tensor, ...]
"""Parameters of a distribution, as rsl_rl's ``output_distribution_params``."""


class PolicyLoss:
    """The actor's loss on what its last layer returned. Add or change a policy loss here."""

    def __init__(self, actor: MLPModel, options: PpoOptions) -> None:
        """Take the coefficients from ``options``."""
        self._actor, self._options = actor, options
        self.kl_coef = options.kl_penalty_coef

    def __call__(
        self,
        mlp_output: torch.Tensor,
        actions: torch.Tensor,
        old_log_prob: torch.Tensor,
        advantages: torch.Tensor,
        old_params: Params,
        teacher_params: Params,
        teacher_coef: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss of K steps in n environments.

        Args:
            mlp_output: What the actor's last layer returned. Shape: (K, n, ...).
            actions: Actions taken. Shape: (K, n, A).
            old_log_prob: Their log-probability when they were taken. Shape: (K, n).
            advantages: Advantages. Shape: (K, n).
            old_params: Parameters of the distribution they were drawn from.
            teacher_params: Parameters of the teacher's distribution; empty without teacher.
            teacher_coef: Weight of the KL divergence from the teacher's distribution.

        Returns:
            Per-sample losses, shape (K, n), and the detached sums of surrogate, entropy and KL
            divergence from ``old_params``, shape (3,).
        """
        actor, options = self._actor, self._options
        actor.distribution.update(mlp_output)  # type: ignore[union-attr]
        log_prob, entropy = actor.get_output_log_prob(actions), actor.output_entropy
        penalized = options.policy_loss == "kl_penalty"
        with torch.set_grad_enabled(penalized):
            kl = actor.get_kl_divergence(old_params, actor.output_distribution_params)
        if penalized:
            surrogate = losses.penalized_surrogate(
                log_prob, old_log_prob, advantages, kl, self.kl_coef
            )
        else:
            clip_high = options.clip_param_high or options.clip_param
            surrogate = losses.clipped_surrogate(
                log_prob,
                old_log_prob,
                advantages,
                options.clip_param,
                clip_high,
                options.dual_clip_param,
            )
        loss = surrogate - options.entropy_coef * entropy
        if teacher_params:
            params = actor.output_distribution_params
            loss = loss + teacher_coef * actor.get_kl_divergence(teacher_params, params)
        sums = torch.stack((surrogate.sum(), entropy.sum(), kl.sum()))
        return loss, sums.detach()

    def adapt(self, kl: float) -> None:
        """Follow ``desired_kl`` with the coefficient of the KL penalty.

        Args:
            kl: Mean KL divergence from the policy that acted, at the end of an update.

        References:
            Schulman et al. (2017), section 4.
        """
        if self._options.policy_loss != "kl_penalty":
            return
        if kl < self._options.desired_kl / 1.5:  # type: ignore[operator]
            self.kl_coef /= 2.0
        elif kl > self._options.desired_kl * 1.5:  # type: ignore[operator]
            self.kl_coef *= 2.0
