"""The teacher of a distillation: its labels, its file, and DAgger's mixing of actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.checkpoints.describing import load_teacher
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.rollout import ACTIONS, STD, Labels
from rsl_tbptt.extensions import OptionGroup, between, count
from rsl_tbptt.models.controller import has_parameters


@dataclass(kw_only=True)
class TeacherOptions(OptionGroup):
    """Options of a distillation's teacher."""

    teacher_checkpoint: str | None = None
    """File of the teacher: PPO's actor, a distillation's teacher, or its student if only that fits.

    ``RUN/latest`` is the newest loadable checkpoint. None is read if the runner loads one.
    """

    teacher_action_share: Annotated[
        float, between(0, 1, " Give 30 % of the environments as 0.3.")
    ] = 0.0
    """Share of environments, 0 to 1, in which the teacher acts when training starts (DAgger).

    See docs/reference/distillation.md#who-acts.
    """

    teacher_action_updates: Annotated[int | None, count(hint=" Use None to keep the share.")] = None
    """Updates over which ``teacher_action_share`` falls linearly to 0; None keeps it constant."""

    def check_together(self) -> Iterator[str]:
        """Check options that only work together; see the base class."""
        yield from super().check_together()
        if self.teacher_action_share == 0:
            yield from self.without_effect("teacher_action_updates", "teacher_action_share")


class TeacherLabels:
    """Labels each step during the rollout, so that a teacher with memory keeps its state."""

    def __init__(self, storage: RolloutStorage, with_std: bool) -> None:
        """Prepare storage for the labels.

        Args:
            storage: Storage of the rollouts.
            with_std: Whether labels include the standard deviation of the teacher's Gaussian.
        """
        self._storage = storage
        self._std = torch.zeros_like(storage.privileged_actions) if with_std else None

    def of_step(self, teacher: MLPModel, obs: TensorDict, step: int) -> torch.Tensor:
        """Return the teacher's actions at a step, shape (N, A), for the storage.

        Args:
            teacher: The teacher, in compiled form if it is compiled.
            obs: Observations of all environments, batch size (N,).
            step: Step of the rollout.
        """
        if self._std is None:
            return teacher(obs).detach()
        teacher(obs, stochastic_output=True)
        self._std[step].copy_(teacher.output_std)
        return teacher.output_mean.detach()

    def of_rollout(self) -> Labels:
        """Return the labels of the stored rollout, which has to be complete."""
        labels = {ACTIONS: self._storage.privileged_actions}
        return labels if self._std is None else {**labels, STD: self._std}

    def recorded(self) -> dict[str, torch.Tensor]:
        """Return values that may be NaN, by their names in messages, shape (T, N, D) each."""
        return {"teacher actions": self._storage.privileged_actions}


class TeacherFile:
    """A teacher whose file is read at the first step of a training.

    Not before: a checkpoint for playing or resuming has brought the teacher, so its file is not
    needed.
    """

    def __init__(self, model: MLPModel, path: str | None, obs: TensorDict, ranks: Ranks) -> None:
        """Keep the teacher and the file named in the config.

        Args:
            model: The teacher.
            path: ``teacher_checkpoint``: its file, or ``FOLDER/latest``.
            obs: Observations of any batch size.
            ranks: The processes that train together.

        Raises:
            ValueError: If a file is named for a teacher without parameters.
        """
        self.is_loaded = not has_parameters(model)
        """Whether the teacher has its parameters, or needs none."""
        if path is not None and self.is_loaded:
            raise ValueError(
                f"teacher_checkpoint is '{path}', expected None: the teacher, {model}, has no"
                " parameters to load."
            )
        self.model, self.path, self._obs, self._ranks = model, path, obs, ranks

    def check(self) -> bool:
        """Return True if there is, or will be, a teacher.

        Raises:
            ValueError: If not; rsl_rl's own error does not say how to name one.
        """
        if not self.is_loaded and self.path is None:
            raise ValueError(
                "teacher_checkpoint is None and no checkpoint was loaded, expected one of the two:"
                " name the teacher's file as the algorithm's option teacher_checkpoint, or call"
                " runner.load(FILE). In Isaac Lab that is --checkpoint FILE, in mjlab"
                " --agent.algorithm.teacher-checkpoint FILE, or its run with --agent.resume True"
                " --agent.load-run '.*_teacher'."
            )
        return True

    def load(self) -> Mapping[str, Any] | None:
        """Read the file on each rank, unless the teacher has its parameters.

        Returns:
            The file's checkpoint, None if it was not read.

        Raises:
            ValueError: If the file is missing, damaged or does not fit. Nothing is changed then.
        """
        if self.is_loaded or self.path is None:
            return None
        read = partial(load_teacher, self.model, self.path, self._obs)
        with torch.inference_mode(False):  # the runner's rollout disables gradients
            checkpoint = self._ranks.run_together(read)
        self.is_loaded = True
        return checkpoint


class Dagger:
    """Draws the environments in which the teacher acts: the mixed policy of DAgger.

    In Ross et al. (2011) the teacher acts with probability beta_k in iteration k, the student
    otherwise, and the teacher labels every state. Here an exact number of environments is drawn
    once per rollout, so that a teacher's trajectory is as long as the rollout. beta_k falls
    linearly to 0 over ``teacher_action_updates``, or is constant.

    References:
        Ross, Gordon and Bagnell (2011), A Reduction of Imitation Learning and Structured Prediction
        to No-Regret Online Learning.
    """

    def __init__(
        self,
        options: TeacherOptions,
        num_envs: int,
        trained: torch.Tensor,
        num_updates: Callable[[], int],
    ) -> None:
        """Take the share and its schedule; the teacher acts nowhere until the first draw.

        Args:
            options: The share of the environments that train, and its schedule.
            num_envs: Number of environments N.
            trained: The environments that train; in the others the student acts. Shape: (M,).
            num_updates: Returns the number of updates so far.
        """
        self._share = options.teacher_action_share
        self._last_update = options.teacher_action_updates
        self._num_envs, self._trained, self._num_updates = num_envs, trained, num_updates
        self._teacher_acts: torch.Tensor | None = None

    def begin_rollout(self) -> None:
        """Draw the environments where the teacher acts in this rollout.

        The host does not wait for the device. If there are none, no random number is drawn.
        """
        if self._share == 0:
            return
        share = self._share
        if self._last_update is not None:
            share *= max(0.0, 1.0 - self._num_updates() / self._last_update)
        trained = self._trained
        num_drawn = round(share * len(trained))
        draw = torch.randperm if num_drawn else torch.arange
        acts = draw(len(trained), device=trained.device) < num_drawn
        self._teacher_acts = acts.new_zeros(self._num_envs, 1).index_copy(
            0, trained, acts.unsqueeze(-1)
        )

    def mix(self, actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the teacher's labels where it acts, elsewhere the student's actions: (N, A).

        A label that is not finite is never executed.
        """
        if self._teacher_acts is None:
            return actions
        acts = self._teacher_acts & torch.isfinite(labels).all(-1, keepdim=True)
        return torch.where(acts, labels, actions)

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return the share of environments where the teacher acts, shape (); empty if unused."""
        if self._teacher_acts is None:
            return {}
        return {"teacher_action_share": self._teacher_acts.float().mean()}
