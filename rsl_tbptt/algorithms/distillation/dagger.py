"""Which environments act with the teacher's action: the mixed policy of DAgger.

Ross et al. (2011) let the teacher act with probability beta_k in iteration k and the student
elsewhere, while every state is labelled by the teacher. Here the choice falls once per rollout and
environment, with an exact count, so that a teacher's trajectory is as long as the rollout.
"""

from __future__ import annotations

import torch

from rsl_tbptt.algorithms.distillation.options import DistillationOptions


class Dagger:
    """Draws the environments of the teacher for each rollout, and mixes the actions."""

    def __init__(
        self, options: DistillationOptions, num_envs: int, device: str | torch.device
    ) -> None:
        """Take the share and its schedule; the teacher acts nowhere until the first draw."""
        self._share, self._last_update = (
            options.teacher_action_share,
            options.teacher_action_updates,
        )
        self._num_envs, self._device = num_envs, device
        self._teacher_acts: torch.Tensor | None = None

    def draw(self, num_updates: int) -> None:
        """Choose where the teacher acts in this rollout, after so many updates."""
        if self._share > 0:
            share = scheduled_share(self._share, num_updates, self._last_update)
            self._teacher_acts = draw_envs(share, self._num_envs, self._device)

    def mix(self, actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the teacher's labels where it acts, elsewhere the student's actions: (N, A).

        A label that is not finite, as where no teacher is selected, reaches no environment.
        """
        if self._teacher_acts is None:
            return actions
        acts = self._teacher_acts & torch.isfinite(labels).all(-1, keepdim=True)
        return torch.where(acts, labels, actions)

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return the share of the environments in this rollout, shape (); empty if unused."""
        if self._teacher_acts is None:
            return {}
        return {"teacher_action_share": self._teacher_acts.float().mean()}


def scheduled_share(share: float, num_updates: int, last_update: int | None) -> float:
    """Return the share of environments that act with the teacher's action, beta_k.

    Args:
        share: The share at the start of training, from 0 to 1.
        num_updates: k, the updates made so far.
        last_update: The number of updates after which the share is 0, falling linearly until then.
            None keeps it constant.

    References:
        Ross, Gordon and Bagnell (2011), A Reduction of Imitation Learning and Structured Prediction
        to No-Regret Online Learning: DAgger, with beta_k falling linearly.
    """
    if last_update is None:
        return share
    return share * max(0.0, 1.0 - num_updates / last_update)


def draw_envs(share: float, num_envs: int, device: str | torch.device) -> torch.Tensor:
    """Draw exactly ``round(share * num_envs)`` environments, without host synchronisation.

    No random number is drawn where that count is 0.

    Args:
        share: From 0 to 1.
        num_envs: N.
        device: Device of the result.

    Returns:
        True for the drawn environments. Shape: (N, 1), bool.
    """
    num_drawn = round(share * num_envs)
    if num_drawn == 0:
        return torch.zeros(num_envs, 1, dtype=torch.bool, device=device)
    return torch.randperm(num_envs, device=device).unsqueeze(-1) < num_drawn
