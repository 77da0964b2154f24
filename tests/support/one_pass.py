"""Options that make TbpttDistillation learn from a rollout like rsl_rl's, in every release."""

from typing import Any

ONE_PASS: dict[str, Any] = {
    "num_learning_epochs": 1,
    "num_mini_batches": 1,
    "buffer_rollouts": 0,
    "weight_average": False,
}
