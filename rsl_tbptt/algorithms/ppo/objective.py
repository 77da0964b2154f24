"""PPO's losses per sample, of actor and critic. Add or change a policy loss here."""

from __future__ import annotations

import torch

from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.update.health import FirstReplay
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses
from rsl_tbptt.core.rollout import Labels

Params = tuple[torch.Tensor, ...]
"""Parameters of a distribution, as rsl_rl's ``output_distribution_params``."""

LOSSES = ("value", "surrogate", "entropy", "kl")
"""What is always reported of an optimiser step."""

KL = LOSSES.index("kl")

OLD, TEACHERS = "old", "teachers"
"""Whose distributions are among the actor's labels: the policy's that acted, the teacher's."""


def labels_of(whose: str, params: Params) -> dict[str, torch.Tensor]:
    """Name the parameters of a distribution as labels, of any shape."""
    return {f"{whose}_param_{index}": param for index, param in enumerate(params)}


def params_in(labels: Labels, whose: str) -> Params:
    """Return the parameters that ``labels_of`` named, of any shape; none if they are not there."""
    return tuple(label for name, label in labels.items() if name.startswith(f"{whose}_param_"))


class PolicyLoss:
    """The actor's loss: surrogate, entropy bonus and imitation of a teacher."""

    def __init__(self, actor: MLPModel, options: PpoOptions, first_replay: FirstReplay) -> None:
        """Take the coefficients from ``options``; ``first_replay`` looks at probabilities."""
        self._actor, self._options, self._first_replay = actor, options, first_replay
        self.kl_coef = options.kl_penalty_coef

    def __call__(
        self,
        outputs: Outputs,
        labels: Labels,
        *,
        advantages: tuple[torch.Tensor | float, torch.Tensor | float],
        teacher_coef: float,
    ) -> SampleLosses:
        """Compute the losses of K steps of n environments.

        Args:
            outputs: What the actor makes its distribution from. Shape: (K, n, ...).
            labels: ``advantages`` (K, n), ``actions`` (K, n, A), their ``log_prob`` (K, n) when
                they were taken, the parameters of the distribution they were drawn from, and with
                a teacher those of its distribution, or its mean.
            advantages: What is subtracted from advantages, and what they are divided by then.
            teacher_coef: Weight of the teacher's loss.

        Returns:
            The losses; ``surrogate``, ``entropy``, ``kl`` (from the policy that acted), without KL
            penalty ``clip_fraction`` and with a teacher ``teacher`` are reported.
        """
        actor, options = self._actor, self._options
        assert actor.distribution is not None
        actor.distribution.update(*outputs)
        mean, scale = advantages
        normalized = (labels["advantages"] - mean) / scale
        log_prob, entropy = actor.get_output_log_prob(labels["actions"]), actor.output_entropy
        self._first_replay.see_log_ratio(log_prob, labels["log_prob"])
        penalized, old = options.policy_loss == "kl_penalty", params_in(labels, OLD)
        with torch.set_grad_enabled(penalized):
            kl = actor.get_kl_divergence(old, actor.output_distribution_params)
        reported: dict[str, torch.Tensor] = {}
        if penalized:
            surrogate = losses.penalized_surrogate(
                log_prob, labels["log_prob"], normalized, kl, self.kl_coef
            )
        else:
            clips = options.clip_param, options.clip_param_high or options.clip_param
            surrogate = losses.clipped_surrogate(
                log_prob, labels["log_prob"], normalized, *clips, options.dual_clip_param
            )
            reported["clip_fraction"] = losses.is_clipped(log_prob, labels["log_prob"], *clips)
        loss = surrogate - options.entropy_coef * entropy
        reported |= {"surrogate": surrogate, "entropy": entropy, "kl": kl}
        teachers = params_in(labels, TEACHERS)
        if teachers:
            reported["teacher"] = self._of_teacher(teachers)
            loss = loss + teacher_coef * reported["teacher"]
        return SampleLosses(loss, reported)

    def _of_teacher(self, params: Params) -> torch.Tensor:
        """Return the distance from the teacher's distribution, or from its mean, shape (K, n)."""
        actor = self._actor
        if self._options.teacher_loss == "mse":
            return losses.mse(actor.output_mean, *params)
        return actor.get_kl_divergence(params, actor.output_distribution_params)

    def adapt(self, kl: float) -> None:
        """Follow ``desired_kl`` with the coefficient of the KL penalty.

        Args:
            kl: Mean KL divergence from the policy that acted, at the end of an update.

        References:
            Schulman et al. (2017), section 4.
        """
        desired_kl = self._options.desired_kl
        if self._options.policy_loss != "kl_penalty" or desired_kl is None:
            return
        if kl < desired_kl / 1.5:
            self.kl_coef /= 2.0
        elif kl > desired_kl * 1.5:
            self.kl_coef *= 2.0


class ValueLoss:
    """The critic's loss."""

    def __init__(self, options: PpoOptions) -> None:
        """Take the clip from ``options``."""
        self._clip = options.clip_param if options.use_clipped_value_loss else None

    def __call__(self, outputs: Outputs, labels: Labels) -> SampleLosses:
        """Compute the losses of K steps of n environments.

        Args:
            outputs: Values. Shape: (K, n, 1).
            labels: ``returns`` and the ``values`` of the rollout. Shape: (K, n, 1).

        Returns:
            The losses, reported as ``value``.
        """
        (values,) = outputs
        error = losses.value_error(values, labels["returns"], labels["values"], self._clip)
        return SampleLosses(error.squeeze(-1), {"value": error.squeeze(-1)})
