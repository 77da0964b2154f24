"""A teacher of the recall task that always has the answer, and what students learn from it."""

from typing import Any

import torch
from rsl_rl.runners import DistillationRunner
from tensordict import TensorDict
from torch import nn

from rsl_tbptt_tasks.memory import RecallEnv
from support.safe_runs import make_runner


class PerfectTeacher(nn.Module):
    """Gives the right answers, behind rsl_rl's interface of a model without memory."""

    is_recurrent = False

    def __init__(self, *_unused: object) -> None:
        super().__init__()

    def forward(self, obs: TensorDict) -> torch.Tensor:
        return obs["privileged"][:, 2:]

    def reset(self, dones: object = None, hidden_state: object = None) -> None:
        """Do nothing: there is no state."""

    def get_hidden_state(self) -> None:
        """Return None: there is no state."""


def learned(
    student: dict[str, Any], recall_length: int, num_steps: int, iterations: int, **options: Any
) -> float:
    """Train a student under the stock runner; return its mean reward per question."""
    env = RecallEnv(num_envs=64, recall_length=recall_length)
    runner = make_runner(
        runner_class=DistillationRunner,
        env=env,
        algorithm=options,
        student=student,
        teacher={"class_name": PerfectTeacher},
        num_steps_per_env=num_steps,
    )
    runner.learn(iterations)
    policy, obs = runner.get_inference_policy(), env.get_observations()
    total = count = 0.0
    with torch.inference_mode():
        for step in range(10 * (recall_length + 1)):
            obs, rewards, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            if step > 2 * recall_length:
                total, count = total + rewards.sum().item(), count + dones.sum().item()
    return total / count
