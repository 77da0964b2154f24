"""Carts on rails, pushed by a wind. The student measures noisy positions and nothing else."""

from dataclasses import dataclass

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict


@dataclass
class MyEnvCfg:
    """Settings for loggers: rsl_rl's writer for W&B needs a dataclass."""

    noise: float = 0.01
    """Standard deviation of measured positions in m."""


class MyEnv(VecEnv):
    """Each cart has to stop at 0. All carts are rows of one tensor."""

    def __init__(self, num_envs: int, seed: int = 0, device: str = "cpu") -> None:
        self.num_envs, self.num_actions, self.device, self.cfg = num_envs, 1, device, MyEnvCfg()
        self.max_episode_length, self.step_dt = 100, 0.05  # 5 s at 20 Hz
        self.generator = torch.Generator(device).manual_seed(seed)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.state = self.draw_starts()

    def draw_starts(self) -> torch.Tensor:
        """Return position, velocity and wind, each between -1 and 1. Shape: (N, 3)."""
        numbers = torch.rand(self.num_envs, 3, generator=self.generator, device=self.device)
        return 2 * numbers - 1

    def get_observations(self) -> TensorDict:
        """Return what the student measures, and what only teacher and critic know."""
        noise = torch.randn(self.num_envs, 1, generator=self.generator, device=self.device)
        groups = {"policy": self.state[:, :1] + self.cfg.noise * noise, "privileged": self.state}
        return TensorDict(groups, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Move every cart. A cart whose episode ended starts again in the same step."""
        position, velocity, wind = self.state.unbind(1)
        force = actions[:, 0].clamp(-1, 1)
        velocity = velocity + self.step_dt * (5 * force + 2 * wind)
        position = position + self.step_dt * velocity
        self.state = torch.stack((position, velocity, wind), dim=1)
        self.episode_length_buf = self.episode_length_buf + 1
        lost = position.abs() > 2
        time_outs = ~lost & (self.episode_length_buf >= self.max_episode_length)
        dones = lost | time_outs
        rewards = self.step_dt * (1 - position.abs() - 0.1 * force.abs())
        # PPO values what lies beyond a time-out by the last observations, not those of the restart.
        extras = {"time_outs": time_outs, "final_obs": self.get_observations()}
        self.state = torch.where(dones[:, None], self.draw_starts(), self.state)
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf)
        return self.get_observations(), rewards, dones.long(), extras


def make(num_envs: int, seed: int, device: str) -> MyEnv:
    """Build the environment for ``rsl-tbptt``, which takes ``--env my_task.env:make``."""
    return MyEnv(num_envs, seed, device)
