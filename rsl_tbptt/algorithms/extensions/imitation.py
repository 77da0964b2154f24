"""Imitation of a teacher in PPO's loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_obs_groups
from tensordict import TensorDict

from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.option_checks import OptionGroup, count, positive
from rsl_tbptt.algorithms.replay import observed_groups
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.rollout import labels_of
from rsl_tbptt.models.controller import as_teacher, has_parameters, is_model, with_controllers
from rsl_tbptt.models.teacher_group import (
    SelectedTeachers,
    check_teacher,
    check_teacher_file,
    load_teacher,
    models_by_role,
)


@dataclass(kw_only=True)
class ImitationOptions(OptionGroup):
    """Options of :class:`Imitation`."""

    teacher_cfg: dict[str, Any] | None = None
    """Model of a teacher that the actor imitates: ``"class_name"`` and its arguments.

    See docs/howto/finetune.md.
    """

    teacher_checkpoint: str | None = None
    """File of the teacher: a checkpoint with PPO's actor or a distillation's teacher.

    ``RUN/latest`` is the newest loadable checkpoint. None is read if the runner loads one with a
    teacher.
    """

    teacher_coef: Annotated[float, positive(0)] = 0.0
    """Weight of the imitation loss; 0 disables imitation."""

    teacher_loss: Literal["kl", "mse", "nll"] = "kl"
    """Imitation loss: ``"kl"`` from the teacher, ``"mse"`` of means, ``"nll"`` of its action."""

    teacher_coef_end: Annotated[float, positive(0)] = 0.0
    """Weight at the end of the schedule."""

    teacher_updates: Annotated[int | None, count()] = None
    """Updates, after the critic's warm-up, over which the weight falls; None keeps it constant."""

    def check_together(self) -> Iterator[str]:
        """Check options that only work together; see the base class."""
        yield from super().check_together()
        if self.teacher_coef == 0:
            names = (field.name for field in fields(ImitationOptions))
            of_teacher = " ".join(name for name in names if name != "teacher_coef")
            yield from self.without_effect(of_teacher, "teacher_coef")
            return
        if self.teacher_cfg is None:
            self.refuse("teacher_coef teacher_cfg", "both: imitation needs the teacher's model")
        if self.teacher_coef_end > self.teacher_coef:
            expected = f"at most teacher_coef, {self.teacher_coef}: the teacher's weight falls"
            self.refuse("teacher_coef_end", expected)
        if self.teacher_updates is None:
            yield from self.without_effect("teacher_coef_end", "teacher_updates")


class Imitation(Extension):
    """A teacher that the actor imitates. Without a teacher this class has no effect.

    The weight of the imitation loss, here with ``teacher_coef`` 0.8 and ``teacher_updates`` 4::

        update                                   0    1    2    3    4    5
        teacher_coef_end 0                      .8   .6   .4   .2    0    0
        teacher_coef_end 0.4                    .8   .7   .6   .5   .4   .4

    The schedule waits during the critic's warm-up.

    References:
        Schmitt et al. (2018), "Kickstarting deep reinforcement learning", for the KL divergence
        from the teacher's policy that is added to the loss.
    """

    name = "imitation"

    def __init__(
        self,
        actor: MLPModel,
        options: ImitationOptions,
        storage: RolloutStorage,
        ranks: Ranks,
        waits: Callable[[], bool],
    ) -> None:
        """Set up the schedule; the teacher's model is set later.

        Args:
            actor: The imitating actor.
            options: Loss, weight and schedule.
            storage: The storage of rollouts.
            ranks: The ranks that train together.
            waits: Returns whether the schedule waits in this update.
        """
        self._actor, self._options, self._storage = actor, options, storage
        self._ranks, self._waits = ranks, waits
        self.model: MLPModel | None = None
        """The teacher, whatever its weight; None before it is set."""
        self.is_loaded = False
        """Whether the teacher has its parameters."""
        self._num_updates = 0
        self._recorded: list[tuple[torch.Tensor, ...]] = []

    def set_teacher(self, teacher: MLPModel) -> None:
        """Set the teacher's model, whose parameters come from a checkpoint, or a controller.

        Raises:
            ValueError: If a file is named for a teacher without parameters.
            NotImplementedError: If its distribution is of another kind than the actor's and the
                loss compares them.
        """
        teacher = as_teacher(teacher, self._storage.actions.shape[-1])
        ours, theirs = type(self._actor.distribution), type(teacher.distribution)
        if self._options.teacher_loss == "kl" and theirs is not ours:
            raise NotImplementedError(
                f"The teacher's distribution is a {theirs.__name__}, expected a {ours.__name__}"
                " like the actor's: teacher_loss 'kl' compares them. Set"
                " 'teacher_cfg.distribution_cfg', or teacher_loss to 'mse', which compares means,"
                " or 'nll', -log p of the teacher's action."
            )
        check_teacher_file(teacher, self._options.teacher_checkpoint)
        self.model, self.is_loaded = teacher.eval(), not has_parameters(teacher)

    @property
    def teacher(self) -> MLPModel | None:
        """The teacher, or None while its weight is 0."""
        return self.model if self.coef > 0 else None

    @property
    def coef(self) -> float:
        """Weight of the imitation loss in this update."""
        options = self._options
        first, last = options.teacher_coef, options.teacher_coef_end
        if first == 0 or not self.is_loaded:
            return 0.0
        progress = min(1.0, self._num_updates / (options.teacher_updates or math.inf))
        return last + (first - last) * (1.0 - progress)

    def begin_rollout(self) -> None:
        """Drop what an interrupted rollout has left."""
        self._recorded = []

    @torch.no_grad()
    def act(self, obs: TensorDict, step: int) -> None:
        """Record the teacher's action at a step, while its weight is not 0.

        The teacher runs during the rollout, so a recurrent one keeps its state.

        Args:
            obs: Observations of all environments, batch size (N,).
            step: Step of the rollout.
        """
        if self.model is None or self.coef == 0:
            return
        if self._options.teacher_loss != "kl":
            self._recorded.append((self.model(obs).clone(),))  # a controller may reuse its output
        else:
            self.model(obs, stochastic_output=True)
            params = self.model.output_distribution_params
            self._recorded.append(tuple(param.clone() for param in params))

    def params(self) -> tuple[torch.Tensor, ...]:
        """Return the recorded values of this rollout, shape (T, N, A) each; none at weight 0.

        They are the parameters of the teacher's distribution with ``"kl"``, otherwise its actions.
        """
        return tuple(torch.stack(params) for params in zip(*self._recorded, strict=True))

    def labels(self) -> dict[str, torch.Tensor]:
        """Return the recorded values as labels."""
        return labels_of("teacher", self.params())

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the recorded values by their names for a user."""
        name = "the teacher's distribution, parameter"
        return {f"{name} {index}": params for index, params in enumerate(self.params())}

    def process_env_step(self, step: int, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Clear the state of ended episodes."""
        for model in self.stateful_models().values():
            model.reset(dones)

    def observed_groups(self) -> set[str]:
        """Return the groups that the teacher reads."""
        stored = self._storage.observations
        return set() if self.model is None else {*observed_groups(self.model, stored)}

    def stateful_models(self) -> dict[str, Any]:
        """Return the teacher, or several, each with its own state; none before it is set."""
        return {} if self.model is None else models_by_role(self.model)

    def advance(self, metrics: dict[str, float]) -> None:
        """Advance the schedule unless it waits; turn the update's metrics into those to log."""
        if self.teacher is None:
            del metrics["teacher"]
        if self._options.teacher_coef > 0:
            metrics["teacher_coef"] = self.coef
        self._recorded = []
        if not self._waits():
            self._num_updates += 1

    def start_training(self) -> None:
        """Load a teacher with a weight from its file, unless a checkpoint has brought it.

        Raises:
            ValueError: If no file is named, or it is missing, damaged or does not fit.
        """
        path, coef = self._options.teacher_checkpoint, self._options.teacher_coef
        if coef == 0 or self.is_loaded:
            return
        if self.model is None:
            raise ValueError(
                f"teacher_coef is {coef} and no teacher was set, expected set_teacher(model), which"
                " construct_algorithm calls, before training starts."
            )
        if path is None and not isinstance(self.model, SelectedTeachers):
            raise ValueError(
                f"teacher_coef is {coef} and teacher_checkpoint is None, expected the teacher's"
                " file in teacher_checkpoint, or a checkpoint that brings the teacher with"
                " --checkpoint FILE. Without a teacher set teacher_coef to 0."
            )
        load_teacher(self.model, path, self._storage.observations, self._ranks)
        self.is_loaded = True

    def state_dict(self) -> dict[str, Any]:
        """Return the values that the schedule needs to continue; empty without a teacher."""
        if self.model is None or (has_parameters(self.model) and not self.is_loaded):
            return {}
        return {"num_updates": self._num_updates, "teacher_state_dict": self.model.state_dict()}

    def load_state_dict(self, saved: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Restore the schedule, and the teacher if the checkpoint has one.

        Raises:
            ValueError: If the teacher does not fit. Nothing is changed then.
        """
        self.load_teacher(saved)

    def load_teacher(
        self, saved: Mapping[str, Any], checkpoint: Mapping[str, Any] | None = None
    ) -> None:
        """Restore the schedule and the teacher.

        Args:
            saved: The result of ``state_dict``; or a distillation's teacher alone, with which the
                schedule starts. If it has no teacher, ``teacher_checkpoint`` provides the
                parameters.
            checkpoint: The checkpoint, if the teacher's config must be the same as there.

        Raises:
            ValueError: If the teacher does not fit. Nothing is changed then.
        """
        teacher, state_dict = self.model, saved.get("teacher_state_dict")
        if teacher is not None and has_parameters(teacher) and state_dict:
            obs = self._storage.observations
            check_teacher(teacher, state_dict, obs, checkpoint or {})
            teacher.load_state_dict(state_dict)
            self.is_loaded = True
        self._num_updates = saved.get("num_updates", 0)


def build_teacher(
    obs: TensorDict, env: VecEnv, cfg: dict[str, Any], teacher_cfg: dict[str, Any], device: str
) -> MLPModel:
    """Build the teacher that ``teacher_cfg`` describes, without changing the random state.

    Args:
        obs: Observations of the environment.
        env: The environment.
        cfg: The runner's config. The teacher sees its observation set "teacher".
        teacher_cfg: The model's class and arguments.
        device: Device of the teacher.

    Returns:
        An untrained model.
    """
    # A copy, as models remove entries from it.
    arguments = with_controllers(copy.deepcopy(teacher_cfg), env)
    model_class = resolve_callable(arguments.pop("class_name"))
    obs_groups = cfg["obs_groups"]
    if is_model(model_class):
        obs_groups = resolve_obs_groups(obs, obs_groups, ["teacher"])
    with torch.random.fork_rng(devices=[]):  # models are built on the CPU
        teacher = model_class(obs, obs_groups, "teacher", env.num_actions, **arguments)
    return teacher.to(device)
