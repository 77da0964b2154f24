"""PPO's losses per sample, and its advantages: add or change a policy loss here.

:class:`PolicyLoss` and :func:`value_loss` compare the outputs of actor and critic with the labels
of the rollout.
"""

from __future__ import annotations

import torch
from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core import losses
from rsl_tbptt.core.accumulate import Outputs, SampleLosses
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.rollout import Labels, generalized_advantages, params_in


class PolicyLoss:
    """The actor's loss: surrogate, entropy bonus and imitation of a teacher."""

    def __init__(self, actor: MLPModel, options: PpoOptions, first_replay: FirstReplay) -> None:
        """Take the coefficients from ``options``; ``first_replay`` records probabilities."""
        self._actor, self._options, self._first_replay = actor, options, first_replay
        clips = () if options.policy_loss == "kl_penalty" else ("clip_fraction",)
        self.reported = ("surrogate", "entropy", "teacher", *clips)
        """Names of the values that it may report, besides the KL divergence."""
        self.kl_coef = options.kl_penalty_coef
        """Coefficient of the KL penalty."""
        # On the device: a recorded step reads the tensors, and not the numbers of its recording.
        coef = torch.zeros((), dtype=torch.float64, device=next(actor.parameters()).device)
        self._kl_coef, self._teacher_coef = coef, coef.clone()

    def begin_update(self, teacher_coef: float) -> None:
        """Set the coefficients of an update, ``teacher_coef`` is that of the imitation loss."""
        self._kl_coef.fill_(self.kl_coef)
        self._teacher_coef.fill_(teacher_coef)

    def __call__(
        self,
        outputs: Outputs,
        labels: Labels,
        *,
        offset: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
    ) -> SampleLosses:
        """Compute the losses of K steps of n environments.

        Args:
            outputs: Inputs of the actor's distribution. Shape: (K, n, ...).
            labels: ``advantages`` (K, n), ``actions`` (K, n, A), their ``log_prob`` (K, n) when
                they were taken, the parameters of the distribution they were drawn from, and with
                a teacher the parameters of its distribution, or its action.
            offset: Mean of the mini-batch's advantages, shape (), if they are normalised over it.
            scale: Their scale, shape ().

        Returns:
            The losses. They report ``surrogate``, ``entropy``, ``kl`` (from the policy that acted),
            without KL penalty ``clip_fraction``, and with a teacher ``teacher``.
        """
        actor, options = self._actor, self._options
        assert actor.distribution is not None
        actor.distribution.update(*outputs)
        normalized = labels["advantages"]
        if offset is not None and scale is not None:
            normalized = (normalized - offset) / scale
        log_prob = actor.get_output_log_prob(labels["actions"])
        entropy = actor.output_entropy
        self._first_replay.see_log_ratio(log_prob, labels["log_prob"])
        penalized = options.policy_loss == "kl_penalty"
        with torch.set_grad_enabled(penalized):
            kl = actor.get_kl_divergence(params_in(labels, "old"), actor.output_distribution_params)
        reported = {"entropy": entropy, "kl": kl}
        if penalized:
            surrogate = losses.penalized_surrogate(
                log_prob, labels["log_prob"], normalized, kl, self._kl_coef
            )
        else:
            clips = options.clip_param, options.clip_param_high or options.clip_param
            surrogate = losses.clipped_surrogate(log_prob, labels["log_prob"], normalized, *clips)
            reported["clip_fraction"] = losses.is_clipped(log_prob, labels["log_prob"], *clips)
        reported["surrogate"] = surrogate
        loss = surrogate - options.entropy_coef * entropy
        if teachers := params_in(labels, "teacher"):
            if options.teacher_loss == "mse":
                distance = losses.mse(actor.output_mean, *teachers)
            elif options.teacher_loss == "nll":
                distance = losses.nll(actor.get_output_log_prob, *teachers)
            else:
                distance = actor.get_kl_divergence(teachers, actor.output_distribution_params)
            reported["teacher"] = distance
            loss = loss + self._teacher_coef * distance
        return SampleLosses(loss, reported)

    def adapt(self, kl: float) -> None:
        """Change the coefficient of the KL penalty to follow ``desired_kl``.

        Args:
            kl: Mean KL divergence from the policy that acted, at the end of an update.

        References:
            Schulman et al. (2017), section 4.
        """
        desired_kl = self._options.desired_kl
        assert desired_kl is not None
        if kl < desired_kl / 1.5:
            self.kl_coef /= 2.0
        elif kl > desired_kl * 1.5:
            self.kl_coef *= 2.0


def value_loss(outputs: Outputs, labels: Labels, clip: float | None) -> SampleLosses:
    """Compute the critic's losses of K steps of n environments, reported as ``value``.

    Args:
        outputs: Values. Shape: (K, n, 1).
        labels: ``returns`` and the ``values`` of the rollout. Shape: (K, n, 1).
        clip: Clip range of values around those of the rollout; None disables it.
    """
    (values,) = outputs
    error = losses.value_error(values, labels["returns"], labels["values"], clip).squeeze(-1)
    return SampleLosses(error, {"value": error})


def store_advantages(
    storage: RolloutStorage,
    last_values: torch.Tensor,
    options: PpoOptions,
    count: int,
    ranks: Ranks,
) -> None:
    """Compute advantages and returns into a full storage.

    Args:
        storage: The storage.
        last_values: Values after the last step. Shape: (N,).
        options: Discount, lambda, and whether advantages are normalised over the rollout.
        count: Number of samples in all processes.
        ranks: The processes that train together.
    """
    advantages = generalized_advantages(
        storage.rewards.squeeze(-1),
        storage.values.squeeze(-1),
        last_values,
        storage.dones.squeeze(-1).bool(),
        options.gamma,
        options.lam,
    ).unsqueeze(-1)
    # In place: the runner calls this in inference mode, and autograd refuses tensors created there.
    storage.returns.copy_(advantages + storage.values)
    if not options.normalize_advantage_per_mini_batch:
        mean, scale = mean_and_scale(advantages, count, ranks)
        advantages = (advantages - mean) / scale
    storage.advantages.copy_(advantages)


def mean_and_scale(
    advantages: torch.Tensor, count: int, ranks: Ranks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return offset and scale that normalise advantages as rsl_rl does. Shape: () each."""
    mean, std = ranks.mean_and_std(advantages, count)
    return mean, std + 1e-8
