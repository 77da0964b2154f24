"""Options with which TbpttDistillation learns from a rollout as rsl_rl's does, in every release."""

from typing import Any

ONE_PASS: dict[str, Any] = {"num_learning_epochs": 1, "num_mini_batches": 1, "buffer_rollouts": 0}
