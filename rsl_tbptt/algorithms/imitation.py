"""Imitation of a teacher in PPO's loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import torch
from rsl_rl.env import VecEnv
from rsl_rl.utils import resolve_obs_groups
from tensordict import TensorDict

from rsl_tbptt.algorithms.replay import Policy, observed_groups
from rsl_tbptt.algorithms.teachers import TeacherFile
from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.compat.versions import MLPModel, resolve_callable
from rsl_tbptt.core import losses
from rsl_tbptt.core.rollout import Samples
from rsl_tbptt.extensions import Extension, OptionGroup, Term, count, positive
from rsl_tbptt.models.controller import as_teacher, has_parameters, is_model, with_controllers


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

    teacher_file: TeacherFile | None = None
    """The teacher and its file; None before a model is set."""

    def __init__(self, options: ImitationOptions, algorithm: Any) -> None:
        """Set up the schedule; the teacher's model is set later."""
        self._num_updates = 0
        super().__init__(options, algorithm)
        self._recorded: list[tuple[torch.Tensor, ...]] = []
        device = algorithm.storage.dones.device
        # On the device: a recorded step reads it, and not the number of its recording.
        self._coef = torch.zeros((), dtype=torch.float64, device=device)

    def set_teacher(self, teacher: MLPModel) -> None:
        """Set the teacher's model, whose parameters come from a checkpoint, or a controller.

        Raises:
            ValueError: If a file is named for a teacher without parameters.
            NotImplementedError: If its distribution is of another kind than the actor's and the
                loss compares them.
        """
        storage, actor = self.algorithm.storage, self.algorithm.actor
        teacher = as_teacher(teacher, storage.actions.shape[-1])
        ours, theirs = type(actor.distribution), type(teacher.distribution)
        if self.options.teacher_loss == "kl" and theirs is not ours:
            raise NotImplementedError(
                f"The teacher's distribution is a {theirs.__name__}, expected a {ours.__name__}"
                " like the actor's: teacher_loss 'kl' compares them. Set"
                " 'teacher_cfg.distribution_cfg', or teacher_loss to 'mse', which compares means,"
                " or 'nll', -log p of the teacher's action."
            )
        path, ranks = self.options.teacher_checkpoint, self.algorithm.ranks
        self.teacher_file = TeacherFile(teacher, path, storage.observations, ranks)
        teacher.eval()

    @property
    def model(self) -> MLPModel | None:
        """The teacher, whatever its weight; None before it is set."""
        return self.teacher_file and self.teacher_file.model

    @property
    def teacher(self) -> MLPModel | None:
        """The teacher, or None while its weight is 0."""
        return self.model if self.coef > 0 else None

    @property
    def coef(self) -> float:
        """Weight of the imitation loss in this update."""
        first, last = self.options.teacher_coef, self.options.teacher_coef_end
        if first == 0 or self.teacher_file is None or not self.teacher_file.is_loaded:
            return 0.0
        progress = min(1.0, self._num_updates / (self.options.teacher_updates or math.inf))
        return last + (first - last) * (1.0 - progress)

    def begin_rollout(self) -> None:
        """Drop what the last rollout has left; load a teacher with a weight that is not loaded.

        Raises:
            ValueError: If no file is named, or it is missing, damaged or does not fit.
        """
        self._recorded = []
        coef, file = self.options.teacher_coef, self.teacher_file
        if coef == 0 or (file is not None and file.is_loaded):
            return
        if file is None:
            raise ValueError(
                f"teacher_coef is {coef} and no teacher was set, expected set_teacher(model), which"
                " construct_algorithm calls, before training starts."
            )
        if file.path is None:
            raise ValueError(
                f"teacher_coef is {coef} and teacher_checkpoint is None, expected the teacher's"
                " file in teacher_checkpoint, or a checkpoint that brings the teacher with"
                " --checkpoint FILE. Without a teacher set teacher_coef to 0."
            )
        file.load()

    @torch.no_grad()
    def act(self, obs: TensorDict, step: int) -> None:
        """Record the teacher's action at a step, while its weight is not 0.

        The teacher runs during the rollout, so a recurrent one keeps its state.
        """
        model = self.teacher
        if model is None:
            return
        if self.options.teacher_loss != "kl":
            self._recorded.append((model(obs).clone(),))  # a controller may reuse its output
        else:
            model(obs, stochastic_output=True)
            params = model.output_distribution_params
            self._recorded.append(tuple(param.clone() for param in params))

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor
    ) -> torch.Tensor:
        """Clear the teacher's state in ended episodes."""
        if self.model is not None:
            self.model.reset(dones.long())
        return rewards

    def labels(self) -> dict[str, Any]:
        """Return the parameters of the teacher's distribution with "kl", otherwise its actions."""
        self._coef.fill_(self.coef)
        recorded = tuple(torch.stack(params) for params in zip(*self._recorded, strict=True))
        return {"teacher": recorded} if recorded else {}

    def losses(self, policy: Policy, samples: Samples) -> Iterator[Term]:
        """Yield the distance from the teacher."""
        if "teacher" not in samples:
            return
        params = samples["teacher"]
        if self.options.teacher_loss == "mse":
            distance = losses.mse(policy.mean, *params)
        elif self.options.teacher_loss == "nll":
            distance = losses.nll(policy.log_prob_of, *params)
        else:
            distance = policy.kl_from(params)
        yield "teacher", self._coef, distance

    def observed_groups(self) -> set[str]:
        """Return the groups that the teacher reads."""
        stored = self.algorithm.storage.observations
        return set() if self.model is None else {*observed_groups(self.model, stored)}

    def advance(self, metrics: dict[str, float]) -> None:
        """Advance the schedule, which waits while the critic alone is trained."""
        if self.options.teacher_coef > 0:
            metrics["teacher_coef"] = self.coef
        if not self.algorithm.holds_actor:
            self._num_updates += 1

    @property
    def state(self) -> dict[str, Any]:
        """The number of updates, and the teacher's parameters if it has any; empty without it.

        Raises:
            ValueError: When it is set, if the teacher does not fit.
        """
        if self.teacher_file is None or not self.teacher_file.is_loaded:
            return {}
        parameters = self.teacher_file.model.state_dict()
        return {"num_updates": self._num_updates, "teacher_state_dict": parameters}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        self._num_updates = state.get("num_updates", 0)
        self.load_teacher(state.get("teacher_state_dict"))

    def load_teacher(
        self, parameters: Mapping[str, Any] | None, checkpoint: Mapping[str, Any] | None = None
    ) -> None:
        """Load the teacher's parameters, if there are any; else its file provides them.

        Args:
            parameters: A state dict.
            checkpoint: The checkpoint, if the teacher's config must be the same as there.

        Raises:
            ValueError: If they do not fit. Nothing is changed then.
        """
        file = self.teacher_file
        if file is not None and has_parameters(file.model) and parameters:
            stored = self.algorithm.storage.observations
            check_fits(file.model, parameters, "teacher", stored, checkpoint or {})
            file.model.load_state_dict(parameters)
            file.is_loaded = True


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
