"""The teacher of a distillation: labels, recorded layers, losses, loading, and DAgger's mixing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.behavior_losses import ACTIONS, NEWEST, STD
from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.extensions.heads import LAYER, HeadOptions
from rsl_tbptt.algorithms.optimizers import step_batches
from rsl_tbptt.algorithms.option_checks import OptionGroup, between, count
from rsl_tbptt.algorithms.replay import Replay, observed_groups
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.rollout import Labels
from rsl_tbptt.models.controller import check_needs_file, has_parameters
from rsl_tbptt.models.protocol import action_head, gaussian_head
from rsl_tbptt.models.teacher_group import NONE, SelectedTeachers, load_teacher


@dataclass(kw_only=True)
class TeacherOptions(OptionGroup):
    """Options of a distillation's teacher."""

    teacher_checkpoint: str | None = None
    """File of the teacher: a checkpoint with PPO's actor or a distillation's teacher.

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

    batch_teacher_labels: bool = False
    """Whether all labels are computed at once after each rollout, which saves forward passes.

    It needs a teacher without memory, and ``teacher_action_share=0``.
    """

    def check_together(self) -> Iterator[str]:
        """Check options that only work together; see the base class."""
        yield from super().check_together()
        if self.teacher_action_share > 0 and self.batch_teacher_labels:
            self.refuse(
                "batch_teacher_labels",
                "False with teacher_action_share: the teacher acts with its labels in the rollout",
            )
        if self.teacher_action_share == 0:
            yield from self.without_effect("teacher_action_updates", "teacher_action_share")


class StepLabels:
    """Labels each step during the rollout, so that a teacher with memory keeps its state."""

    def __init__(
        self, teacher: MLPModel, storage: RolloutStorage, with_std: bool, layers: TeacherLayers
    ) -> None:
        """Prepare storage for the labels.

        Args:
            teacher: The teacher, or several.
            storage: Storage of the rollouts.
            with_std: Whether labels include the standard deviation of the teacher's Gaussian.
            layers: The teacher's layers that are recorded.
        """
        self._storage, self.layers = storage, layers
        self._std = torch.zeros_like(storage.privileged_actions) if with_std else None
        self._teachers = teacher if isinstance(teacher, SelectedTeachers) else None
        steps = storage.dones.squeeze(-1)
        self._selected = torch.zeros_like(steps, dtype=torch.int16) if self._teachers else None
        self.teacher_names = self._teachers.names if self._teachers else ()
        """Names of several teachers in the order of their numbers; empty for a single teacher."""

    def of_step(self, teacher: MLPModel, obs: TensorDict, step: int) -> torch.Tensor:
        """Return the teacher's actions at a step, shape (N, A), for the storage.

        Args:
            teacher: The teacher, in compiled form if it is compiled.
            obs: Observations of all environments, batch size (N,).
            step: Step of the rollout.
        """
        if self._std is None:
            actions = teacher(obs).detach()
        else:
            teacher(obs, stochastic_output=True)
            self._std[step].copy_(teacher.output_std)
            actions = teacher.output_mean.detach()
        if self._teachers is not None and self._selected is not None:
            self._selected[step].copy_(self._teachers.selected)
        self.layers.keep(step)
        return actions

    def complete(self) -> None:
        """Do nothing: every step has its label."""

    def of_rollout(self) -> Labels:
        """Return the labels of the stored rollout, which has to be complete."""
        actions = self._storage.privileged_actions
        named = {ACTIONS: actions, STD: self._std, TEACHER: self._selected}
        return {name: label for name, label in named.items() if label is not None}

    def recorded(self) -> dict[str, torch.Tensor]:
        """Return values that may be NaN, by their names in messages, shape (T, N, D) each."""
        recorded = {"teacher actions": self._storage.privileged_actions}
        if self._teachers is not None and self._selected is not None:
            selector, chosen = self._teachers.selector, self._selected.unsqueeze(-1).double()
            kind = (
                f"the choice of a teacher by {selector.described}, which is none of"
                f" {selector.expected},"
            )
            recorded = {kind: chosen.masked_fill(chosen == NONE, torch.nan), **recorded}
        outputs = self.layers.outputs.items()
        return {**{f"the teacher's layer '{layer}'": seen for layer, seen in outputs}, **recorded}


class RolloutLabels(StepLabels):
    """Labels stored observations instead of each step, which needs fewer and larger operations."""

    def __init__(
        self, teacher: MLPModel, storage: RolloutStorage, with_std: bool, layers: TeacherLayers
    ) -> None:
        """Take the teacher and its stored observations; arguments are those of the base class.

        Raises:
            ValueError: If the teacher has memory.
        """
        super().__init__(teacher, storage, with_std, layers)
        if teacher.is_recurrent:
            raise ValueError(
                "batch_teacher_labels is True, expected False with a recurrent teacher: its labels"
                " need the steps in order."
            )
        self._observations = storage.observations.select(
            *observed_groups(teacher, storage.observations)
        )
        models: dict[str, Any] = dict(self._teachers.teachers) if self._teachers else {"": teacher}
        head = gaussian_head if with_std else action_head
        self._replays = {name: Replay(model, head) for name, model in models.items()}

    def of_step(self, teacher: MLPModel, obs: TensorDict, step: int) -> torch.Tensor:
        """Return the storage's values at a step, shape (N, A); ``complete`` fills them later."""
        return self._storage.privileged_actions[step]

    @torch.no_grad()
    def complete(self) -> None:
        """Label the stored rollout."""
        labels = self.of_rollout().values()
        num_steps, num_envs = self._observations.batch_size
        for steps in step_batches(num_steps, num_envs, self._storage.dones.device):
            rows = self._observations[steps].flatten(0, 1)
            if self._teachers is None:
                outputs = self._run("", rows)
            else:
                outputs = [*self._teachers.run(rows, self._run), self._teachers.selected]
            for label, output in zip(labels, outputs, strict=True):
                label[steps].copy_(output.view_as(label[steps]))
            self.layers.keep(steps.start)

    def _run(self, name: str, rows: TensorDict) -> list[torch.Tensor]:
        """Return the outputs of a teacher's head for observations of batch size (n,): (n, A)."""
        starts = torch.zeros(1, len(rows), dtype=torch.bool, device=rows.device)
        outputs, _ = self._replays[name](rows.unsqueeze(0), None, starts)
        return [output.squeeze(0) for output in outputs]


TEACHER = "teacher"
"""Label: index of the sample's teacher among several. Shape: (T, N), int16."""


class LossPerTeacher(Extension):
    """Sums up loss and samples of each teacher in the newest rollout, on the device.

    Sums do not depend on micro-batches; their quotient is logged after the update.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Take the teachers in the order of their numbers; none for a single teacher."""
        self._losses = {f"behavior/{name}": f"num_samples/{name}" for name in names}
        self.reported = (*self._losses, *self._losses.values())

    def wrap(self, loss: Loss) -> Loss:
        """Return a loss that reports the sums as well."""

        def reporting(outputs: Outputs, labels: Labels) -> SampleLosses:
            losses = loss(outputs, labels)
            reported, behavior = dict(losses.reported), losses.reported["behavior"]
            for index, (name, number) in enumerate(self._losses.items()):
                own = labels[TEACHER] == index
                own = own & labels[NEWEST] if NEWEST in labels else own
                reported[name] = torch.where(own, behavior, 0.0)
                reported[number] = own.to(behavior.dtype)
            return replace(losses, reported=reported)

        return reporting

    def advance(self, metrics: dict[str, float]) -> None:
        """Turn the sums into means to log; none of a teacher without samples."""
        for name, number in self._losses.items():
            loss, num_samples = metrics.pop(name), metrics.pop(number)
            if num_samples > 0:
                metrics[name] = loss / num_samples


class TeacherLayers:
    """Outputs of some of the teacher's layers at every step of the rollout."""

    def __init__(
        self,
        teacher: MLPModel,
        storage: RolloutStorage,
        heads: Mapping[str, HeadOptions],
        *,
        in_batches: bool,
    ) -> None:
        """Add hooks to the layers that are targets.

        Args:
            teacher: The teacher, before it is compiled.
            storage: The storage of rollouts.
            heads: Options of the auxiliary heads by name.
            in_batches: Whether whole rollouts are labelled at once.

        Raises:
            ValueError: If a layer is unknown, does not give one vector per environment, or if there
                are several teachers.
        """
        self.outputs: dict[str, torch.Tensor] = {}
        """Outputs by layer. Shape: (T, N, D) each."""
        self._seen: dict[str, Any] = {}
        asked = {name: head.teacher_layer for name, head in heads.items() if head.teacher_layer}
        if not asked:
            return
        if isinstance(teacher, SelectedTeachers):
            name, layer = next(iter(asked.items()))
            raise ValueError(
                f"auxiliary.{name}.target is '{LAYER}{layer}', expected no layer of a teacher"
                " with several teachers: each sees only its own samples, and their layers differ."
                " Predict an observation group."
            )
        found = _vectors_of_layers(teacher, storage.observations[0])
        for name, layer in asked.items():
            if layer not in found or (in_batches and layer.startswith("cnns.")):
                raise ValueError(
                    f"auxiliary.{name}.target is '{LAYER}{layer}', expected a layer of the"
                    " teacher that gives one vector per environment, once, one of"
                    f" {list(found)}; none of a CNN with batch_teacher_labels."
                )
        for layer in dict.fromkeys(asked.values()):
            shape = (storage.num_transitions_per_env, *found[layer].shape)
            self.outputs[layer] = found[layer].new_zeros(shape)
            teacher.get_submodule(layer).register_forward_hook(partial(_see, self._seen, layer))

    def keep(self, first_step: int) -> None:
        """Store the last outputs of the layers, of all environments from ``first_step`` on."""
        for layer, kept in self.outputs.items():
            rows = self._seen.pop(layer).detach().view(-1, *kept.shape[1:])
            kept[first_step : first_step + len(rows)].copy_(rows)


def _see(seen: dict[str, Any], layer: str, _: nn.Module, __: Any, output: Any) -> None:
    seen[layer] = output[0] if isinstance(output, tuple) else output


@torch.no_grad()
def _vectors_of_layers(teacher: MLPModel, obs: TensorDict) -> dict[str, torch.Tensor]:
    """Return the outputs of the layers that give one vector per environment, (N, D) each.

    A layer that runs several times in a pass is left out, since its name does not identify one
    output: rsl_rl's MLP has one activation for all its hidden layers.
    """
    calls: dict[str, list[Any]] = {}

    def record(layer: str, _: nn.Module, __: Any, output: Any) -> None:
        calls.setdefault(layer, []).append(output[0] if isinstance(output, tuple) else output)

    layers = {name: module for name, module in teacher.named_modules() if name}
    if not layers:  # a controller, or a teacher whose file is not read yet
        return {}
    hooks = [each.register_forward_hook(partial(record, name)) for name, each in layers.items()]
    training, state = teacher.training, teacher.get_hidden_state()
    teacher.eval()  # keeps running statistics unchanged
    try:
        teacher(obs)
    finally:
        teacher.train(training)
        teacher.reset(hidden_state=state)
        for hook in hooks:
            hook.remove()
    once = {layer: outputs[0] for layer, outputs in calls.items() if len(outputs) == 1}
    return {
        layer: output.reshape(len(obs), -1)
        for layer, output in once.items()
        if isinstance(output, torch.Tensor)
        and output.dim() > 1
        and output.numel() == len(obs) * output.shape[-1]
    }


class LazyTeacher(Extension):
    """Takes the place of ``teacher_loaded``; the first step of a training loads the teacher.

    Only then is the file of ``teacher_checkpoint`` read, or the files of several teachers: a
    checkpoint for playing or resuming has brought the teacher, so the file is not needed.
    """

    def __init__(
        self,
        teacher: MLPModel,
        path: str | None,
        obs: TensorDict,
        ranks: Ranks,
        loaded: Callable[[Sequence[str]], None],
    ) -> None:
        """Keep the teacher and the file named in the config.

        Args:
            teacher: The teacher, or several, which know their own files.
            path: ``teacher_checkpoint``: file of a single teacher, or ``FOLDER/latest``.
            obs: Observations of any batch size.
            ranks: The processes that train together.
            loaded: Receives the files that were read.

        Raises:
            ValueError: If one file is named for several teachers, or for one without parameters.
        """
        self._teacher, self._path, self._obs, self._ranks = teacher, path, obs, ranks
        self._loaded = loaded
        self.is_loaded = not has_parameters(teacher)
        """Whether a checkpoint has brought the teacher, or none is needed."""
        if isinstance(teacher, SelectedTeachers) and path is not None:
            raise ValueError(
                f"teacher_checkpoint is '{path}', expected None with several teachers: each has its"
                " own file, 'checkpoint' in teacher.teachers."
            )
        if path is not None:
            check_needs_file(teacher, "teacher_checkpoint", path)

    def start_training(self) -> None:
        """Load the teacher from its file, if one is named and no checkpoint has brought it.

        Raises:
            ValueError: If the file is missing, damaged or does not fit. Nothing is changed then.
        """
        if not self.is_loaded and self._has_file:
            load = partial(load_teacher, self._teacher, self._path, self._obs)
            with torch.inference_mode(False):  # the runner's rollout disables gradients
                self._ranks.run_together(load)
            self.is_loaded = True
            several = self._teacher if isinstance(self._teacher, SelectedTeachers) else None
            self._loaded(several.files if several else [str(self._path)])

    @property
    def _has_file(self) -> bool:
        return self._path is not None or isinstance(self._teacher, SelectedTeachers)

    def __bool__(self) -> bool:
        """Return True: rsl_rl's runners ask ``if not teacher_loaded`` before training.

        Raises:
            ValueError: If there will be no teacher; rsl_rl's own error does not say how to name it.
        """
        if not self.is_loaded and not self._has_file:
            raise ValueError(
                "teacher_checkpoint is None and no checkpoint was loaded, expected one of the two:"
                " name the teacher's file as the algorithm's option teacher_checkpoint, or call"
                " runner.load(FILE). In Isaac Lab that is --checkpoint FILE, in mjlab"
                " --agent.algorithm.teacher-checkpoint FILE, or its run with --agent.resume True"
                " --agent.load-run '.*_teacher'."
            )
        return True


class Dagger(Extension):
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

        A label that is not finite, as without a selected teacher, is never executed.
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
