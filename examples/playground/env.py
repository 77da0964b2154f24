"""MuJoCo Playground: its environments as rsl_rl 5 and the commands of this package need them.

Playground's own wrapper fits rsl_rl 3.1. It lacks ``cfg``, which the runners of rsl_rl 5 read, and
its ``get_observations`` starts all episodes again. The episodes' last observations are lost in it.
"""

from __future__ import annotations

from typing import Any

import jax
import torch
from jax.dlpack import from_dlpack
from mujoco_playground import MjxEnv, State, wrapper, wrapper_torch
from tensordict import TensorDict

_FINAL_OBS = "final_obs"
"""Key in the ``info`` of Playground's states."""


class PlaygroundEnv(wrapper_torch.RSLRLBraxWrapper):
    """Environments of Playground for the runners of rsl_rl 5 and the commands of this package.

    An environment that is done gives the first observations of its next episode in the same step.
    Playground caches an environment's first state: all its episodes start alike, and what a task
    keeps in ``info`` stays.
    """

    clip_actions = 1.0
    """Playground's wrapper clips actions to plus or minus this; exports repeat it."""

    def __init__(
        self,
        env: MjxEnv,
        num_actors: int,
        seed: int,
        episode_length: int,
        action_repeat: int,
        **options: Any,
    ) -> None:
        """Compile the task and start an episode everywhere; the arguments are Playground's.

        Args:
            env: The task, as ``registry.load`` returns it.
            num_actors: Number of environments.
            seed: Seed of the starts.
            episode_length: Time limit, in steps of the task.
            action_repeat: Steps of the task per action.
            **options: ``randomization_fn``, as ``registry.get_domain_randomizer`` returns it;
                ``device_rank``, the index of the GPU to simulate on, without which JAX chooses the
                device; ``render_callback``.
        """
        super().__init__(env, num_actors, seed, episode_length, action_repeat, **options)
        self.env.env = _FinalObservations(self.env.env)  # inside of the automatic reset
        # Actions are bound to their device. If the first state were not, JAX would compile twice.
        self.key_reset = jax.device_put(self.key_reset, self.key_reset.device)
        self.cfg, self.step_dt = env._config, env.dt * action_repeat
        self.device = str(self.reset()["state"].device)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Finished steps of the current episodes. Shape: (N,), int64.

        Setting it moves the time limits, so that the episodes do not all end together.
        """
        state = self.env_state
        return _to_torch(jax.numpy.where(state.done, 0, state.info["steps"])).long()

    @episode_length_buf.setter
    def episode_length_buf(self, steps: torch.Tensor) -> None:
        info = {**self.env_state.info, "steps": from_dlpack(steps.float())}
        self.env_state = self.env_state.replace(info=info)

    def get_observations(self) -> TensorDict:
        """Return the current observations, batch size (N,); without groups they are ``"state"``."""
        return self._groups(self.env_state.obs)

    def reset(self) -> TensorDict:
        """Start all episodes from their first states, and return the observations there."""
        super().reset()
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Step every environment; one that is done starts its next episode.

        Args:
            actions: Shape (N, A).

        Returns:
            The observations, batch size (N,); rewards and dones, shape (N,), float32; and
            Playground's extras. ``"time_outs"`` is 1 where time alone ended the episode,
            ``"final_obs"`` are the observations before any reset.
        """
        _, rewards, dones, extras = super().step(actions)
        extras["final_obs"] = self._groups(self.env_state.info[_FINAL_OBS])
        return self.get_observations(), rewards, dones, extras

    def _groups(self, obs: Any) -> TensorDict:
        groups = obs if isinstance(obs, dict) else {"state": obs}
        tensors = {name: _to_torch(value) for name, value in groups.items()}
        return TensorDict(tensors, batch_size=[self.num_envs])


class _FinalObservations(wrapper.Wrapper):
    """Notes the observations after each step, since the automatic reset replaces an episode's last.

    JAX needs the same entries in ``info`` before and after a step, so a reset notes its own, too.
    """

    def reset(self, rng: Any) -> State:
        return self._noted(self.env.reset(rng))

    def step(self, state: State, action: Any) -> State:
        return self._noted(self.env.step(state, action))

    def _noted(self, state: State) -> State:
        return state.replace(info={**state.info, _FINAL_OBS: state.obs})


def _to_torch(array: Any) -> torch.Tensor:
    # A copy, as dlpack shares memory: a write would change what JAX keeps, such as the first state.
    return torch.from_dlpack(array).clone()
