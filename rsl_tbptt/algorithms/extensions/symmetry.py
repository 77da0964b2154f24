"""Symmetry with memory: each environment has its robot and mirror images of that robot.

rsl_rl's ``symmetry_cfg`` names a function that appends mirrored samples to a batch. A model with
memory also needs the hidden state of the mirrored robot, so that robot lives here::

    robot                   0, in the simulator     1 ... I-1, mirror images
    observations, actions   stored                  of the function
    hidden state            the model's             kept here, cleared and carried over like it
    everything else         stored                  that of robot 0

A mirrored action was drawn where its original was drawn, so its density is the recorded one of the
original. The model's own density of a mirrored action would be wrong as an importance weight: it is
tiny if the model is not symmetric, and its ratio to the density after an optimiser step explodes.

Weights do not change during a rollout, so mirrored robots need not run alongside: before its first
optimiser step an update runs them through the stored rollout once, without gradient, for their
states. If there is no update, they run through the stored steps when these are dropped. The robots
are the third dimension of observations and actions, (T, N, I), and of states, (L, N, I, H).
Mini-batches, micro-batches and the replay buffer choose environments, so a robot and its images
stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.behavior_losses import ACTIONS, STD
from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.frames import FrameObs
from rsl_tbptt.algorithms.optimizers import step_batches
from rsl_tbptt.algorithms.option_checks import parse_fields
from rsl_tbptt.algorithms.replay import Replay, observations_of, observed_groups
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.core import hidden_state, losses
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Labels, Rollout
from rsl_tbptt.user_functions import made_up, unwritten, values_with_gradient

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


class MirroredRobots(Extension):
    """The mirror images of a training's robots, and their hidden states.

    References:
        Mittal et al. (2024), "Symmetry considerations for learning task symmetric robot policies".
    """

    def __init__(
        self,
        cfg: Mapping[str, Any],
        storage: RolloutStorage,
        models: Sequence[MLPModel],
        *,
        distills: bool = False,
    ) -> None:
        """Import the function, try it out and count the robots of an environment.

        Args:
            cfg: Fields of :class:`SymmetryOptions`.
            storage: The storage of rollouts.
            models: The models, the one that acts first.
            distills: Whether the first one is a student, whose labels are mirrored.

        Raises:
            ValueError: If a field is unknown, or the function does not return the rows that it is
                given, and then mirror images of the same form; or if a distillation asks for
                something else than data augmentation.
        """
        self._options = options = parse_fields(SymmetryOptions, cfg, "symmetry_cfg")
        if distills and (options.use_mirror_loss or not options.use_data_augmentation):
            raise ValueError(
                f"symmetry_cfg has use_data_augmentation {options.use_data_augmentation} and"
                f" use_mirror_loss {options.use_mirror_loss}, expected True and False in"
                " distillation: mirrored labels teach what a mirror loss would."
            )
        self._actor = None if distills else models[0]
        self.reported = () if distills else ("symmetry",)
        self._function = resolve_callable(options.data_augmentation_func)
        self._env = options._env if options.env is None else options.env
        self._storage, stored = storage, storage.observations
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
        seen = models if self.augments else models[:1]
        self._try_out(sorted({g for each in seen for g in observed_groups(each, stored)}))
        if options.use_mirror_loss and "actions" not in values_with_gradient(models[0]):
            raise ValueError(
                "use_mirror_loss is True, expected False with the actor's"
                f" {type(models[0].distribution).__name__}: its actions have no gradient."
            )
        self.replays: Mapping[str, Replay] = {}
        """Models that run for mirrored robots, by role; set by the algorithm."""
        self.states: dict[str, HiddenState] = {}
        """States of the mirrored robots before the next rollout, by role: (L, N, I-1, H)."""
        self._end_states: dict[str, HiddenState] = {}
        self._step_batches = step_batches(storage.num_transitions_per_env, num_envs, device)

    def _mirror(self, obs: TensorDict | None = None, actions: torch.Tensor | None = None) -> Any:
        """Return observations or actions, (B,), with those of mirrored robots, (I * B,)."""
        mirrored_obs, mirrored_actions = self._function(env=self._env, obs=obs, actions=actions)
        return mirrored_obs if actions is None else mirrored_actions

    def _try_out(self, groups: Sequence[str]) -> None:
        """Mirror a few made-up rows, twice.

        Args:
            groups: The observation groups that are read.

        Raises:
            ValueError: If the function writes into what it is given, or if it returns rows of
                another form, in another order, or images that it does not mirror back.
        """
        name, rows = "data_augmentation_func", slice(0, _NUM_TRIED)
        obs: Any = self._storage.observations[0, rows].clone()
        for group in groups:
            obs[group] = made_up(obs[group])
        given = {"actions": made_up(self._storage.actions[0, rows])}
        with unwritten(name, {**obs, **given}):
            once_obs = self._mirror(obs=obs)
            once = self._mirror(actions=given["actions"])
        if missing := {*groups} - {*once_obs.keys()}:
            raise ValueError(
                f"{name} returned no observation groups {sorted(missing)}, expected all that the"
                " models see: repeat those that have no mirror image."
            )
        kinds = {"actions": (given["actions"], once, self._mirror(actions=once))}
        twice_obs = self._mirror(obs=once_obs)
        for group in groups:
            kinds[f"observation group '{group}'"] = (obs[group], once_obs[group], twice_obs[group])
        for kind, tensors in kinds.items():
            self._check_images(f"{name} returned {kind}", *tensors)

    def _check_images(
        self, what: str, given: torch.Tensor, once: torch.Tensor, twice: torch.Tensor
    ) -> None:
        """Check B rows that were mirrored once, (I * B, ...), and twice, (I * I * B, ...).

        Raises:
            ValueError: If they are not the given rows and then images of them.
        """
        shape = (self.num_robots * len(given), *given.shape[1:])
        form, expected = (once.shape, once.dtype, once.device), (shape, given.dtype, given.device)
        if form != expected:
            found, wanted = (
                f"{tuple(s)}, {kind}, {device}" for s, kind, device in (form, expected)
            )
            raise ValueError(
                f"{what} of the form {found}, expected {wanted}, as for what is given."
            )
        if not once.isfinite().all():
            raise ValueError(f"{what} with NaN or inf, expected finite values.")
        robots = once.unflatten(0, (self.num_robots, len(given)))
        if not _are_equal(robots[0], given):
            raise ValueError(
                f"{what} whose first {len(given)} rows are not those given, expected these first,"
                " then those of each mirror image."
            )
        again = twice.unflatten(0, (self.num_robots, *robots.shape[:2]))
        for image in range(1, self.num_robots):
            if not any(_are_equal(each[image], given) for each in again):
                raise ValueError(
                    f"{what} whose mirror image {image} is not mirrored back to the original,"
                    " expected that some image of it is: look for a sign or a pair of columns that"
                    " is turned in one direction only."
                )

    def obs(self, groups: Iterable[str]) -> TensorDict:
        """Return groups of the stored observations for all robots, batch size (T, N, I).

        Gradients reach the stored observations of robots 0 alone, for ``Transaction``.
        """
        groups, pieces = list(groups), []
        for steps in self._step_batches:  # a whole rollout of all groups could be large
            stored = self._storage.observations[steps]
            rows = self._mirror(obs=stored.flatten(0, 1).detach()).select(*groups)
            robots = _with_robots_last(rows, (self.num_robots, *stored.batch_size))
            own = stored.select(*groups).unsqueeze(2)
            pieces.append(torch.cat((own, robots[:, :, 1:]), 2))
        return cast("TensorDict", torch.cat(pieces))

    def actions(self, actions: torch.Tensor) -> torch.Tensor:
        """Return actions, (K, n, A), for all robots, (K, n, I, A)."""
        rows = self._mirror(actions=actions.flatten(0, 1))
        return _with_robots_last(rows, (self.num_robots, *actions.shape[:2]))

    def images_of(self, labels: Labels) -> dict[str, torch.Tensor]:
        """Return labels of PPO, (T, N, ...), for all robots: mirrored actions, (T, N, I, A).

        The others are those of robot 0: (T, N, 1, ...).
        """
        found = {name: values.unsqueeze(2) for name, values in labels.items()}
        if ACTIONS in labels:
            found[ACTIONS] = self.actions(labels[ACTIONS])
        return found

    def behavior(self, labels: Labels) -> dict[str, torch.Tensor]:
        """Return a teacher's labels for all robots, (T, N, I, A), given robot 0's, (T, N, A)."""
        found = {ACTIONS: self.actions(labels[ACTIONS])}
        if STD in labels:  # a mirrored action may have changed its sign; a deviation has none
            found[STD] = self.actions(labels[STD]).abs()
        return found

    def observed_groups(self) -> set[str]:
        """Return all groups, since the function may read any."""
        return {*map(str, self._storage.observations.keys())}

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the mirrored observations that models see."""
        stored = self._storage.observations
        models = [replay.model for replay in self.replays.values()]
        seen = dict.fromkeys(g for model in models for g in observed_groups(model, stored))
        obs = self.obs(seen)
        return {f"mirror images of observation group '{name}'": obs[name] for name in seen}

    def advance(self, metrics: dict[str, float]) -> None:
        """Let the next rollout begin with the states at the end of this one."""
        self._continue_from(self._end_states, self._storage.num_transitions_per_env)

    def drop_rollout(self, num_steps: int) -> None:
        """Let the next rollout begin with the states after the stored steps of a dropped one.

        As those of models, they are cleared if they are not finite.
        """
        dones, ends = self._storage.dones[:num_steps].squeeze(-1).bool(), {}
        for role, replay in self.replays.items():
            if replay.model.is_recurrent:
                obs = self.obs(observed_groups(replay.model, self._storage.observations))
                seen = observations_of(replay.model, cast("TensorDict", obs[:num_steps, :, 1:]))
                starts = Rollout.from_dones(seen, {}, dones).episode_starts
                _, end = replay.run(seen, self.states.get(role), starts, [])
                ends[role] = hidden_state.clear_non_finite(end)
        self._continue_from(ends, num_steps)

    def _continue_from(self, end_states: Mapping[str, HiddenState], num_steps: int) -> None:
        """Clear states after some steps where episodes ended with the last; keep them."""
        ended = self._storage.dones[num_steps - 1].bool()
        self.states = {role: hidden_state.clear(each, ended) for role, each in end_states.items()}

    def running_state(self) -> dict[str, Any]:
        """Return the states of the mirrored robots."""
        states = {role: hidden_state.as_tensors(own) for role, own in self.states.items()}
        return {"mirrored_states": states}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore the states."""
        saved = state.get("mirrored_states", {}).items()
        self.states = {role: hidden_state.from_tensors(own) for role, own in saved}

    def join(self, role: str, state: HiddenState) -> HiddenState:
        """Return the state before a rollout for all robots, (L, N, I, H), given robot 0's."""
        return _join(state, self.states.get(role), self.num_robots)

    def split(self, role: str, end_state: HiddenState) -> HiddenState:
        """Return the state of robot 0 after a rollout, given all robots'; keep the others."""
        self._end_states[role] = hidden_state.apply(lambda each: each[:, :, 1:], end_state)
        return hidden_state.apply(lambda each: each[:, :, 0], end_state)

    def run(
        self,
        states: Sequence[HiddenState],
        seen: Sequence[TensorDict | FrameObs],
        episode_starts: torch.Tensor,
        steps: Sequence[int],
    ) -> list[HiddenState]:
        """Run the mirrored robots through a rollout of PPO with the weights that acted.

        Args:
            states: The models' states before some steps. Shape: (L, S * N, H), or a pair of them.
            seen: Observations of the models for all robots. Batch size (T, N, I).
            episode_starts: True where step t is the first of an episode. Shape: (T, N), bool.
            steps: These steps, the first one included.

        Returns:
            The states of all robots. Shape: (L, S * N, I, H), or a pair of them.
        """
        joined = list(states)
        for index, (role, replay) in enumerate(self.replays.items()):
            if not replay.model.is_recurrent:
                continue
            before, mirrored = self.states.get(role), seen[index][:, :, 1:]
            kept, self._end_states[role] = replay.run(mirrored, before, episode_starts, steps)
            of_steps = hidden_state.concatenate_envs(kept)
            joined[index] = _join(states[index], of_steps, self.num_robots)
        return joined

    def wrap(self, loss: Loss) -> Loss:
        """Return the policy's loss, averaged over robots, plus the mirror loss.

        The mirror loss is the squared distance of the mean action of a mirrored robot from the
        mirrored, detached mean action of the original, averaged over images and actions.
        """
        options, actor = self._options, self._actor
        if actor is None:
            return loss

        def of_robots(outputs: Outputs, labels: Labels) -> SampleLosses:
            if self.augments:
                own = averaged(loss)(outputs, labels)
            else:
                own = loss(tuple(output[:, :, 0] for output in outputs), labels)
            assert actor.distribution is not None
            (rows,) = outputs
            mean = actor.distribution.deterministic_output(rows)
            target = self.actions(mean[:, :, 0].detach())
            error = losses.mse(mean[:, :, 1:], target[:, :, 1:]).mean(2)
            coef = options.mirror_loss_coeff if options.use_mirror_loss else 0.0
            trained = own.trained + coef * error if coef else own.trained
            return SampleLosses(trained, {**own.reported, "symmetry": error})

        return of_robots


_NUM_TRIED = 4
"""Rows with which a function is tried out."""


def _are_equal(values: torch.Tensor, others: torch.Tensor) -> bool:
    """Return whether mirrored values of one form are equal, up to rounding."""
    return torch.allclose(values.double(), others.double(), rtol=1e-4, atol=1e-5)


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


def _join(state: HiddenState, mirrored: HiddenState, num_robots: int) -> HiddenState:
    """Join the states of robots 0, (L, N, H), and mirrored ones, (L, N, I-1, H); None is zeros."""
    if state is None:
        return None
    own = [tensor.unsqueeze(2) for tensor in hidden_state.as_tensors(state)]
    if mirrored is None:
        zeros = [torch.zeros_like(tensor).expand(-1, -1, num_robots - 1, -1) for tensor in own]
        mirrored = hidden_state.from_tensors(zeros)
    pairs = zip(own, hidden_state.as_tensors(mirrored), strict=True)
    return hidden_state.from_tensors([torch.cat(pair, 2) for pair in pairs])
