"""Symmetry with memory: each environment has its robot and mirror images of that robot.

rsl_rl's ``symmetry_cfg`` names a function that appends mirrored samples to a batch. A model with
memory also needs the hidden state of the mirrored robot, so that robot lives here::

    robot                   0, in the simulator     1 ... I-1, mirror images
    observations, actions   stored                  of the function
    hidden state            the model's             kept here, cleared and carried over like it
    advantages, returns     stored                  those of robot 0

Weights do not change during a rollout, so mirrored robots need not run alongside: before its first
optimiser step an update runs them through the stored rollout once, without gradient. That gives the
same states, log-probabilities and values. The robots are the third dimension of observations and
labels, (T, N, I), and of states, (L, N, I, H). Mini-batches, micro-batches and the replay buffer
choose environments, so a robot and its images stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.behavior_losses import ACTIONS, STD
from rsl_tbptt.algorithms.optimizers import step_batches
from rsl_tbptt.algorithms.options import parse_fields
from rsl_tbptt.algorithms.replay import FrameObs, Replay
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.core import hidden_state, losses
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Labels

ACTOR, CRITIC, STUDENT = "actor", "critic", "student"


@dataclass(kw_only=True)
class SymmetryOptions:
    """rsl_rl's ``symmetry_cfg``."""

    data_augmentation_func: str | Callable[..., Any]
    """Function of ``env``, ``obs`` and ``actions``, or its qualified name. It returns the B rows
    that it is given, then those of each mirror image, I * B rows; None stays None."""

    use_data_augmentation: bool = False
    """Whether mirrored samples enter the mean of the losses."""

    use_mirror_loss: bool = False
    """Whether the mirror loss is minimised; otherwise it is only reported."""

    mirror_loss_coeff: float = 0.0
    """Weight of the mirror loss."""

    env: Any = None
    """The environment, given by the runner."""

    _env: Any = None
    """The same in rsl_rl before 5.4."""


class Samples(NamedTuple):
    """Recorded values of PPO's samples, of leading shape (T, N), or with all robots (T, N, I)."""

    actions: torch.Tensor
    """Shape: (T, N, A)."""

    log_prob: torch.Tensor
    """Log-probabilities of the actions. Shape: (T, N)."""

    params: tuple[torch.Tensor, ...]
    """Parameters of the distribution. Shape: (T, N, ...) each."""

    values: torch.Tensor
    """Shape: (T, N, 1)."""

    advantages: torch.Tensor
    """Shape: (T, N)."""

    returns: torch.Tensor
    """Shape: (T, N, 1)."""


class MirroredRobots:
    """The mirror images of a training's robots, and their hidden states.

    References:
        Mittal et al. (2024), "Symmetry considerations for learning task symmetric robot policies".
    """

    def __init__(self, cfg: Mapping[str, Any], storage: RolloutStorage, has_memory: bool) -> None:
        """Import the function and count the robots of an environment.

        Args:
            cfg: Fields of :class:`SymmetryOptions`.
            storage: The storage of rollouts.
            has_memory: Whether any model has memory. If none has, mirrored samples have the
                recorded log-probabilities and values of the originals, as in rsl_rl.

        Raises:
            ValueError: If a field is unknown or the function returns no mirrored rows.
        """
        self._options = options = parse_fields(SymmetryOptions, cfg, "symmetry_cfg")
        self._function = resolve_callable(options.data_augmentation_func)
        self._env = options._env if options.env is None else options.env
        self._storage, self._has_memory = storage, has_memory
        self.augments = options.use_data_augmentation
        """Whether mirrored samples enter the mean of the losses."""
        num_envs, device = storage.num_envs, storage.dones.device
        num_rows = len(self._mirror(actions=storage.actions[0]))
        self.num_robots = num_rows // num_envs
        """Robots of an environment I, the real one included."""
        if self.num_robots < 2 or num_rows % num_envs:
            raise ValueError(
                f"data_augmentation_func returned {num_rows} rows of actions for {num_envs},"
                " expected twice as many or a higher multiple: the rows that it is given, then"
                " those of each mirror image."
            )
        self._states: dict[str, HiddenState] = {}
        self._end_states: dict[str, HiddenState] = {}
        self._ended = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._step_batches = step_batches(storage.num_transitions_per_env, num_envs, device)

    def check_distillation(self) -> None:
        """Check that augmentation is all that is asked for.

        Raises:
            ValueError: If it is not.
        """
        options = self._options
        if options.use_mirror_loss or not options.use_data_augmentation:
            raise ValueError(
                f"symmetry_cfg has use_data_augmentation {options.use_data_augmentation} and"
                f" use_mirror_loss {options.use_mirror_loss}, expected True and False in"
                " distillation: mirrored labels teach what a mirror loss would."
            )

    def _mirror(self, obs: TensorDict | None = None, actions: torch.Tensor | None = None) -> Any:
        """Return observations or actions, (B,), with those of mirrored robots, (I * B,)."""
        mirrored_obs, mirrored_actions = self._function(env=self._env, obs=obs, actions=actions)
        return mirrored_obs if actions is None else mirrored_actions

    def obs(self, groups: Iterable[str]) -> TensorDict:
        """Return groups of the stored observations for all robots, batch size (T, N, I)."""
        groups, pieces = list(groups), []
        for steps in self._step_batches:  # a whole rollout of all groups could be large
            stored = self._storage.observations[steps]
            rows = self._mirror(obs=stored.flatten(0, 1)).select(*groups)
            sizes = (self.num_robots, *stored.batch_size)
            pieces.append(_with_robots_last(rows, sizes))
        return cast("TensorDict", torch.cat(pieces))

    def actions(self, actions: torch.Tensor) -> torch.Tensor:
        """Return actions, (K, n, A), for all robots, (K, n, I, A)."""
        rows = self._mirror(actions=actions.flatten(0, 1))
        return _with_robots_last(rows, (self.num_robots, *actions.shape[:2]))

    def behavior(self, labels: Labels) -> dict[str, torch.Tensor]:
        """Return a teacher's labels for all robots, (T, N, I, A), given robot 0's, (T, N, A)."""
        found = {ACTIONS: self.actions(labels[ACTIONS])}
        if STD in labels:  # a mirrored action may have changed its sign; a deviation has none
            found[STD] = self.actions(labels[STD]).abs()
        return found

    @property
    def states(self) -> dict[str, HiddenState]:
        """States of the mirrored robots by role, cleared where episodes ended: (L, N, I-1, H)."""
        where = self._ended.unsqueeze(-1)
        return {role: hidden_state.clear(state, where) for role, state in self._states.items()}

    @states.setter
    def states(self, states: Mapping[str, HiddenState]) -> None:
        self._states = dict(states)
        self._ended.zero_()

    def begin_rollout(self) -> None:
        """Clear states where episodes ended in a rollout that was dropped."""
        self.states = self.states

    def process_env_step(self, dones: torch.Tensor) -> None:
        """Note which episodes ended with a step. Shape: (N,)."""
        self._ended |= dones.bool()

    def advance(self) -> None:
        """Let the next rollout begin with the states at the end of this one."""
        self._ended.copy_(self._storage.dones[-1].squeeze(-1))
        self._states = self._end_states
        self.begin_rollout()

    def join(self, role: str, state: HiddenState) -> HiddenState:
        """Return the state before a rollout for all robots, (L, N, I, H), given robot 0's."""
        return _join(state, self._states.get(role), self.num_robots)

    def split(self, role: str, end_state: HiddenState) -> HiddenState:
        """Return the state of robot 0 after a rollout, given all robots'; keep the others."""
        self._end_states[role] = hidden_state.apply(lambda each: each[:, :, 1:], end_state)
        return hidden_state.apply(lambda each: each[:, :, 0], end_state)

    def live(
        self,
        samples: Samples,
        states: Sequence[HiddenState],
        replays: Mapping[str, Replay],
        seen: Sequence[TensorDict | FrameObs],
        episode_starts: torch.Tensor,
        steps: Sequence[int],
    ) -> tuple[Samples, list[HiddenState]]:
        """Run the mirrored robots through a rollout of PPO with the weights that acted.

        Args:
            samples: The recorded values.
            states: The models' states before some steps. Shape: (L, S * N, H), or a pair of them.
            replays: The models by role; without augmentation the actor alone.
            seen: Observations of the models for all robots. Batch size (T, N, I).
            episode_starts: True where step t is the first of an episode. Shape: (T, N), bool.
            steps: These steps, the first one included.

        Returns:
            The values of all robots, unless mirrored samples are not to enter the losses; and the
            states of all robots, (L, S * N, I, H) or pairs of them.
        """
        outputs: dict[str, Outputs] = {}
        joined = list(states)
        for index, (role, replay) in enumerate(replays.items()):
            before = self._states.get(role)
            mirrored = seen[index][:, :, 1:]
            outputs[role], kept, end = replay.run(mirrored, before, episode_starts, steps)
            self._end_states[role] = end
            of_steps = hidden_state.concatenate_envs(kept)
            joined[index] = _join(states[index], of_steps, self.num_robots)
        if not self.augments:
            return samples, joined
        actor, actions = replays[ACTOR].model, self.actions(samples.actions)
        assert actor.distribution is not None
        with torch.no_grad():
            actor.distribution.update(*outputs[ACTOR])
            log_prob = actor.get_output_log_prob(actions[:, :, 1:])
            params = actor.output_distribution_params
        lived = Samples(
            actions,
            _beside(samples.log_prob, log_prob if self._has_memory else None),
            tuple(map(_beside, samples.params, params)),
            _beside(samples.values, outputs[CRITIC][0] if self._has_memory else None),
            _beside(samples.advantages),
            _beside(samples.returns),
        )
        return lived, joined

    def policy_loss(self, loss: Loss, actor: MLPModel) -> Loss:
        """Return the policy's loss, averaged over robots, plus the mirror loss.

        The mirror loss is the squared distance of the mean action of a mirrored robot from the
        mirrored, detached mean action of the original, averaged over images and actions.
        """
        options = self._options

        def of_robots(outputs: Outputs, labels: Labels) -> SampleLosses:
            if self.augments:
                own = averaged(loss)(outputs, labels)
            else:
                own = loss(tuple(output[:, :, 0] for output in outputs), labels)
            assert actor.distribution is not None
            (rows,) = outputs
            mean = actor.distribution.deterministic_output(rows.flatten(0, 2))
            mean = mean.unflatten(0, rows.shape[:3])
            target = self.actions(mean[:, :, 0].detach())
            error = losses.mse(mean[:, :, 1:], target[:, :, 1:]).mean(2)
            coef = options.mirror_loss_coeff if options.use_mirror_loss else 0.0
            trained = own.trained + coef * error if coef else own.trained
            return SampleLosses(trained, {**own.reported, "symmetry": error})

        return of_robots


def averaged(loss: Loss) -> Loss:
    """Return a loss averaged over the robots of an environment: (K, n, I) to (K, n)."""

    def of_robots(outputs: Outputs, labels: Labels) -> SampleLosses:
        own = loss(outputs, labels)
        reported = {name: values.mean(2) for name, values in own.reported.items()}
        return SampleLosses(own.trained.mean(2), reported)

    return of_robots


def _with_robots_last(rows: Any, sizes: Sequence[int]) -> Any:
    """Return rows, (I * K * n,), a tensor or TensorDict, as (K, n, I), given I, K and n."""
    if isinstance(rows, torch.Tensor):
        return rows.unflatten(0, sizes).movedim(0, 2)
    return rows.apply(
        lambda each: _with_robots_last(each, sizes), batch_size=[*sizes[1:], sizes[0]]
    )


def _beside(values: torch.Tensor, mirrored: torch.Tensor | None = None) -> torch.Tensor:
    """Join values of robots 0, (T, N, ...), and of mirrored ones; without them for all, to 1."""
    values = values.unsqueeze(2)
    return values if mirrored is None else torch.cat((values, mirrored), 2)


def _join(state: HiddenState, mirrored: HiddenState, num_robots: int) -> HiddenState:
    """Join the states of robots 0, (L, N, H), and of mirrored ones, None where they are zero."""
    if state is None:
        return None
    own = [tensor.unsqueeze(2) for tensor in hidden_state.as_tensors(state)]
    if mirrored is None:
        zeros = [torch.zeros_like(tensor).expand(-1, -1, num_robots - 1, -1) for tensor in own]
        mirrored = hidden_state.from_tensors(zeros)
    pairs = zip(own, hidden_state.as_tensors(mirrored), strict=True)
    return hidden_state.from_tensors([torch.cat(pair, 2) for pair in pairs])
