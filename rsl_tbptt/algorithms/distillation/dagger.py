"""Which environments act with the teacher's action: the mixed policy of DAgger.

Ross et al. (2011) let the teacher act with probability beta_k in iteration k and the student
elsewhere, while every state is labelled by the teacher. Here the choice falls once per rollout and
environment, with an exact count, so that a teacher's trajectory is as long as the rollout.
"""

import torch


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
