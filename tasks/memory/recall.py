"""Recall: repeat a cue that was shown some steps ago."""

from dataclasses import dataclass

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict


@dataclass
class RecallCfg:
    """Settings, for loggers: rsl_rl's writer for Weights & Biases needs a dataclass."""

    recall_length: int
    """Steps between cue and question."""


class RecallEnv(VecEnv):
    """A cue of +1 or -1 is shown in the first step of an episode and must be named at its end.

    With recall length L an episode lasts L + 1 steps::

        step          0      1 .. L-1     L
        cue shown     yes    no           no
        asked         no     no           yes
        reward        0      0            1 - |action - cue| (at least -1)

    A policy without memory cannot do better than action 0 (reward 0); one that remembers reaches 1.
    A gradient that flows back L steps reaches the cue from the question. Episodes of different
    environments start at different times, so every step of a rollout has all phases.

    Observation groups: "policy" (the cue while shown, else 0; 1 while asked, else 0) and
    "privileged" (the same, and the cue while asked, else 0), which needs no memory.
    """

    def __init__(
        self, num_envs: int, recall_length: int, device: str = "cpu", seed: int = 0
    ) -> None:
        """Set up the episodes.

        Args:
            num_envs: Number of environments.
            recall_length: L, the steps between cue and question, at least 1.
            device: Device of all tensors.
            seed: Seed of the cues.

        Raises:
            ValueError: If ``recall_length`` is less than 1.
        """
        if recall_length < 1:
            raise ValueError(f"recall_length is {recall_length}, expected at least 1.")
        self.num_envs = num_envs
        self.num_actions = 1
        self.device = device
        self.cfg = RecallCfg(recall_length)
        self.recall_length = recall_length
        self.max_episode_length = recall_length + 1
        self._generator = torch.Generator(device).manual_seed(seed)
        self.episode_length_buf = torch.arange(num_envs, device=device) % self.max_episode_length
        self._cue = self._draw_cues()

    def reset(self) -> tuple[TensorDict, dict[str, torch.Tensor]]:
        """Start an episode everywhere, so that an evaluation has whole episodes; return the start.

        Training does not need it: without it episodes are spread over all phases.
        """
        # Not in place: a rollout makes tensors in inference mode, which cannot be changed here.
        self.episode_length_buf = torch.zeros_like(self.episode_length_buf)
        self._cue = self._draw_cues()
        return self.get_observations(), {}

    def get_observations(self) -> TensorDict:
        """Return the observations, groups "policy" (N, 2) and "privileged" (N, 3)."""
        shown = torch.where(self.episode_length_buf == 0, self._cue, 0.0)
        asked = self._asked()
        policy = torch.stack((shown, asked.float()), dim=-1)
        answer = torch.where(asked, self._cue, 0.0)
        privileged = torch.cat((policy, answer.unsqueeze(-1)), dim=-1)
        return TensorDict({"policy": policy, "privileged": privileged}, batch_size=[self.num_envs])

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Answer and advance; finished episodes start again with a new cue.

        Args:
            actions: Answers, shape (N, 1). They count only while asked.

        Returns:
            Observations, rewards (N,), dones (N,) and no extras.
        """
        error = (actions.squeeze(-1) - self._cue).abs()
        asked = self._asked()
        rewards = torch.where(asked, (1.0 - error).clamp(min=-1.0), 0.0)
        self.episode_length_buf = torch.where(asked, 0, self.episode_length_buf + 1)
        self._cue = torch.where(asked, self._draw_cues(), self._cue)
        return self.get_observations(), rewards, asked.long(), {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the episodes' state: their steps (N,), cues (N,), the generator."""
        return {
            "episode_length": self.episode_length_buf.clone(),
            "cue": self._cue.clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Continue with the episodes of ``state_dict``, for the same number of environments."""
        self.episode_length_buf = state_dict["episode_length"].to(self.device)
        self._cue = state_dict["cue"].to(self.device)
        self._generator.set_state(state_dict["generator"].cpu())

    def _asked(self) -> torch.Tensor:
        return self.episode_length_buf == self.recall_length

    def _draw_cues(self) -> torch.Tensor:
        bits = torch.randint(2, (self.num_envs,), device=self.device, generator=self._generator)
        return 2.0 * bits - 1.0
