"""Pulses: move a point mass to a target that was shown at the start, against pushes."""

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

STEP_SECONDS = 0.05
SHOWN_STEPS = 5
"""Steps at the start of an episode in which the target is shown."""
PULSE_STEPS = 10
PULSE_RATE = 0.05
"""Probability that a pulse starts in a step without one."""
PULSE_FORCE = 1.0
"""Largest force of a pulse along each axis; the policy's own largest one is 2."""
POSITION_NOISE = 0.03


class PulseEnv(VecEnv):
    """A point mass has to reach a target in the plane and stay there.

    The policy sees a noisy position. It has to remember the target, and to estimate velocity, mass
    and pushes::

        step           0 .. 4     5 .. 119
        target shown   yes        no
        pushes         pulses of 10 steps, at random times
        reward         0.05 exp(-(distance to the target)^2 / 0.2), so an episode is worth at most 6

    Observation groups: "policy" (noisy position; target and 1 while shown, else 0), shape (N, 5),
    and "privileged" (position, target, velocity, mass, push), shape (N, 9), which needs no memory.
    """

    def __init__(self, num_envs: int, device: str = "cpu", seed: int = 0) -> None:
        """Set up the episodes, which start at different times in different environments.

        Args:
            num_envs: Number of environments.
            device: Device of all tensors.
            seed: Seed of everything that is drawn.
        """
        self.num_envs, self.num_actions, self.device = num_envs, 2, device
        self.max_episode_length, self.step_dt = 120, STEP_SECONDS
        self.cfg: dict[str, float] = {"position_noise": POSITION_NOISE}
        self._generator = torch.Generator(device).manual_seed(seed)
        self.episode_length_buf = torch.arange(num_envs, device=device) % self.max_episode_length
        self._state = self._draw_starts()
        self._noise = self._draw_noise()

    def reset(self) -> tuple[TensorDict, dict[str, torch.Tensor]]:
        """Start an episode everywhere, so that an evaluation has whole episodes; return the start.

        Training does not need it: without it episodes are spread over all phases.
        """
        # Not in place: a rollout makes tensors in inference mode, which cannot be changed here.
        self.episode_length_buf = torch.zeros_like(self.episode_length_buf)
        self._state, self._noise = self._draw_starts(), self._draw_noise()
        return self.get_observations(), {}

    def get_observations(self) -> TensorDict:
        """Return the observations, groups "policy" (N, 5) and "privileged" (N, 9)."""
        state = self._state
        shown = (self.episode_length_buf < SHOWN_STEPS).float()[:, None]
        seen = (state["position"] + self._noise, state["target"] * shown, shown)
        known = (
            *(state[name] for name in ("position", "target", "velocity", "mass")),
            self._push(),
        )
        groups = {"policy": torch.cat(seen, dim=-1), "privileged": torch.cat(known, dim=-1)}
        return TensorDict(groups, batch_size=[self.num_envs])

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Apply forces and advance; finished episodes start again.

        Args:
            actions: Forces, shape (N, 2), clipped to 1 and multiplied by 2.

        Returns:
            Observations, rewards (N,), dones (N,) and ``time_outs``: all episodes end by time.
        """
        state = self._state
        force = 2.0 * actions.clamp(-1.0, 1.0) + self._push()
        velocity = state["velocity"] + STEP_SECONDS * force / state["mass"]
        position = state["position"] + STEP_SECONDS * velocity
        rewards = STEP_SECONDS * (-(position - state["target"]).square().sum(-1) / 0.2).exp()
        steps = self.episode_length_buf + 1
        ended = steps == self.max_episode_length
        moved = {**state, "position": position, "velocity": velocity, **self._next_pulse()}
        fresh = self._draw_starts()
        self._state = {
            name: torch.where(ended[:, None], fresh[name], value) for name, value in moved.items()
        }
        self.episode_length_buf = torch.where(ended, 0, steps)
        self._noise = self._draw_noise()
        return self.get_observations(), rewards, ended.long(), {"time_outs": ended}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state of all episodes and of the generator."""
        return {
            **self._state,
            "noise": self._noise,
            "episode_length": self.episode_length_buf,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Continue with the episodes of ``state_dict``, for the same number of environments."""
        self._state = {name: state_dict[name].to(self.device) for name in self._state}
        self._noise = state_dict["noise"].to(self.device)
        self.episode_length_buf = state_dict["episode_length"].to(self.device)
        self._generator.set_state(state_dict["generator"].cpu())

    def _push(self) -> torch.Tensor:
        """Return the force of the running pulses. Shape: (N, 2)."""
        return torch.where(self._state["pulse_left"] > 0, self._state["pulse"], 0.0)

    def _next_pulse(self) -> dict[str, torch.Tensor]:
        """Return the pulses of the next step."""
        left = self._state["pulse_left"] - 1.0
        starts = (left <= 0) & (self._uniform(1) < PULSE_RATE)
        force = PULSE_FORCE * (2.0 * self._uniform(2) - 1.0)
        return {
            "pulse": torch.where(starts, force, self._state["pulse"]),
            "pulse_left": torch.where(starts, float(PULSE_STEPS), left.clamp(min=0.0)),
        }

    def _draw_starts(self) -> dict[str, torch.Tensor]:
        """Draw the start of an episode for every environment. Shape: (N, 1) or (N, 2) each."""
        zeros = torch.zeros(self.num_envs, 2, device=self.device)
        return {
            "position": 2.0 * self._uniform(2) - 1.0,
            "velocity": zeros,
            "target": 2.0 * self._uniform(2) - 1.0,
            "mass": 0.5 + 1.5 * self._uniform(1),
            "pulse": zeros,
            "pulse_left": zeros[:, :1],
        }

    def _draw_noise(self) -> torch.Tensor:
        shape = self.num_envs, 2
        normal = torch.randn(shape, generator=self._generator, device=self.device)
        return POSITION_NOISE * normal

    def _uniform(self, width: int) -> torch.Tensor:
        shape = self.num_envs, width
        return torch.rand(shape, generator=self._generator, device=self.device)
