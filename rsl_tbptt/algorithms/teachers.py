"""The teacher of a distillation: its labels, layers and losses, when it is loaded, when it acts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.behavior_losses import ACTIONS, NEWEST, STD, or_one
from rsl_tbptt.algorithms.heads import TEACHER as LAYER
from rsl_tbptt.algorithms.heads import HeadOptions
from rsl_tbptt.algorithms.optimizers import step_batches
from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.algorithms.replay import (
    Replay,
    action_head,
    gaussian_head,
    observed_groups,
)
from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.checkpoints.reading import checkpoint_file, read_checkpoint
from rsl_tbptt.compat.versions import MLPModel, config_advice, teacher_state_dict
from rsl_tbptt.core.accumulate import Loss, Outputs, SampleLosses
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Labels
from rsl_tbptt.models.teacher_group import NONE, SelectedTeachers, selected_by


class StoredLabels:
    """Where the labels of a rollout lie, whenever they are made."""

    def __init__(
        self, teacher: MLPModel, storage: RolloutStorage, with_std: bool, layers: TeacherLayers
    ) -> None:
        """Take where labels are stored.

        Args:
            teacher: The teacher, or several.
            storage: Storage of the rollouts.
            with_std: Whether labels include the standard deviation of the teacher's Gaussian.
            layers: The teacher's layers that are recorded.
        """
        self._storage, self._layers = storage, layers
        self._std = torch.zeros_like(storage.privileged_actions) if with_std else None
        self._teachers = teacher if isinstance(teacher, SelectedTeachers) else None
        steps = storage.dones.squeeze(-1)
        self._selected = torch.zeros_like(steps, dtype=torch.int16) if self._teachers else None

    @property
    def teacher_names(self) -> tuple[str, ...]:
        """Several teachers in the order of their numbers; none where there is only one."""
        return self._teachers.names if self._teachers else ()

    def of_rollout(self) -> Labels:
        """Return the labels of the stored rollout, once it is complete."""
        named = {
            ACTIONS: self._storage.privileged_actions,
            STD: self._std,
            TEACHER: self._selected,
        }
        return {name: label for name, label in named.items() if label is not None}

    def recorded(self) -> dict[str, torch.Tensor]:
        """Return what may be NaN, by what messages call it, shape (T, N, D) each."""
        actions = {"teacher actions": self._storage.privileged_actions}
        if self._teachers is None or self._selected is None:
            return actions
        selector = self._teachers.selector
        kind = (
            f"the choice of a teacher by {selector.described}, which is none of"
            f" {selector.expected},"
        )
        chosen = self._selected.to(self._storage.privileged_actions.dtype).unsqueeze(-1)
        return {kind: chosen.masked_fill(chosen == NONE, torch.nan), **actions}


class StepLabels(StoredLabels):
    """Labels each step as it happens, so that a teacher with memory keeps it."""

    def of_step(self, teacher: MLPModel, obs: TensorDict, step: int) -> torch.Tensor:
        """Return the teacher's actions at a step, shape (N, A), which the storage shall keep.

        Args:
            teacher: The teacher, compiled where it is.
            obs: Observations of all environments, batch size (N,).
            step: Step of the rollout.
        """
        if self._std is None:
            actions = teacher(obs).detach()
        else:
            teacher(obs, stochastic_output=True)
            self._std[step].copy_(teacher.output_std)
            actions = teacher.output_mean.detach()
        if self._selected is not None:
            self._selected[step].copy_(selected_by(teacher))
        self._layers.keep(step)
        return actions

    def complete(self) -> None:
        """Do nothing: every step has its label."""


class RolloutLabels(StoredLabels):
    """Labels stored observations instead of each step, which takes fewer and larger operations."""

    def __init__(
        self, teacher: MLPModel, storage: RolloutStorage, with_std: bool, layers: TeacherLayers
    ) -> None:
        """Take the teacher and where it finds its observations.

        Args:
            teacher: The teacher.
            storage: Storage of the rollouts.
            with_std: Whether labels include the standard deviation of the teacher's Gaussian.
            layers: The teacher's layers that are recorded.

        Raises:
            ValueError: If the teacher has memory, or the storage lacks what it observes.
        """
        super().__init__(teacher, storage, with_std, layers)
        if teacher.is_recurrent:
            raise ValueError(
                "batch_teacher_labels is True, expected False with a recurrent teacher: its labels"
                " need the steps in order."
            )
        stored = list(storage.observations.keys())
        self._obs_groups = observed_groups(teacher, storage.observations)
        for group in self._obs_groups:
            if group not in stored:
                raise ValueError(
                    f"batch_teacher_labels is True, expected False while the storage lacks the"
                    f" teacher's observation group '{group}', it holds {stored}: the labels are"
                    " computed from stored observations."
                )
        head = gaussian_head if with_std else action_head
        make = partial(Replay, head=head)
        self._replay = _replay_selected(self._teachers, make) if self._teachers else make(teacher)

    def of_step(self, teacher: MLPModel, obs: TensorDict, step: int) -> torch.Tensor:
        """Return what the storage holds at a step, shape (N, A), until ``complete``."""
        return self._storage.privileged_actions[step]

    @torch.no_grad()
    def complete(self) -> None:
        """Label the stored rollout."""
        observations = self._storage.observations.select(*self._obs_groups)
        starts = torch.zeros_like(self._storage.dones.squeeze(-1), dtype=torch.bool)
        num_steps, num_envs = starts.shape
        labels = self.of_rollout().values()
        for steps in step_batches(num_steps, num_envs, starts.device):
            outputs, _ = self._replay(observations[steps], None, starts[steps])
            for label, output in zip(labels, outputs, strict=True):
                label[steps].copy_(output)
            self._layers.keep(steps.start)


def teacher_labels(
    teacher: MLPModel,
    storage: RolloutStorage,
    with_std: bool,
    in_batches: bool,
    layers: TeacherLayers,
) -> StepLabels | RolloutLabels:
    """Return what labels the rollouts.

    Args:
        teacher: The teacher.
        storage: Storage of the rollouts.
        with_std: Whether labels include the standard deviation of the teacher's Gaussian.
        in_batches: Whether whole rollouts are labelled at once.
        layers: The teacher's layers that are recorded.

    Raises:
        ValueError: If they cannot be.
    """
    if in_batches:
        return RolloutLabels(teacher, storage, with_std, layers)
    return StepLabels(teacher, storage, with_std, layers)


def _replay_selected(
    teachers: SelectedTeachers, make: Callable[[MLPModel], Replay]
) -> Callable[[TensorDict, HiddenState, torch.Tensor], tuple[Outputs, HiddenState]]:
    """Make a replay of teachers without memory of which one labels each sample.

    Its outputs are theirs, shape (K, n, A) each, and the number of the teacher, (K, n).
    """
    models: dict[str, Any] = dict(teachers.teachers.items())
    replays = {name: make(model) for name, model in models.items()}

    def run(name: str, rows: TensorDict) -> list[torch.Tensor]:
        starts = torch.zeros(1, len(rows), dtype=torch.bool, device=rows.device)
        outputs, _ = replays[name](rows.unsqueeze(0), None, starts)
        return [output.squeeze(0) for output in outputs]

    def replay(
        obs: TensorDict, state: HiddenState, episode_starts: torch.Tensor
    ) -> tuple[Outputs, HiddenState]:
        outputs = teachers.run(obs.flatten(0, 1), run)
        found = (*outputs, selected_by(teachers))
        return tuple(output.unflatten(0, episode_starts.shape) for output in found), None

    return replay


TEACHER = "teacher"
"""Label: the number of the sample's teacher, of several. Shape: (T, N), int16."""


class LossPerTeacher:
    """Sums up loss and samples of each teacher in the newest rollout, on the device.

    Sums do not depend on micro-batches; what is logged is their quotient after the update.
    """

    def __init__(self, names: Sequence[str], slices: Iterable[str]) -> None:
        """Choose what is reported.

        Args:
            names: The teachers in the order of their numbers; none where there is only one.
            slices: What slices of the action are reported as.

        Raises:
            ValueError: If a slice has the name of a teacher.
        """
        self._losses = {f"behavior/{name}": f"num_samples/{name}" for name in names}
        for index, tag in enumerate(slices):
            if tag in self._losses:
                raise ValueError(
                    f"loss_type[{index}]['name'] is '{tag.removeprefix('behavior/')}', expected"
                    f" another name than those of the teachers, {list(names)}: the losses of both"
                    f" are logged as Loss/{tag}."
                )

    @property
    def names(self) -> list[str]:
        """Names of the sums."""
        return [*self._losses, *self._losses.values()]

    def reported_by(self, loss: Loss) -> Loss:
        """Return a loss that reports the sums, too."""
        return self._with_sums(loss) if self._losses else loss

    def metrics(self, totals: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return losses and numbers of samples of an update's sums, shape () each."""
        total = {name: totals[name] for name in self.names}
        means = {name: total[name] / or_one(total[number]) for name, number in self._losses.items()}
        return {**total, **means}

    def logged(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return what is logged: no number of samples, and no loss of a teacher without any."""
        unused = {name for name, number in self._losses.items() if metrics[number] == 0}
        dropped = unused.union(self._losses.values())
        return {name: value for name, value in metrics.items() if name not in dropped}

    def _with_sums(self, loss: Loss) -> Loss:
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


class TeacherLayers:
    """What some layers of the teacher gave at every step of the rollout."""

    def __init__(
        self,
        teacher: MLPModel,
        storage: RolloutStorage,
        heads: Mapping[str, HeadOptions],
        *,
        in_batches: bool,
    ) -> None:
        """Hook into the layers that are targets.

        Args:
            teacher: The teacher, before it is compiled.
            storage: Where rollouts are stored.
            heads: Options of the auxiliary heads by name.
            in_batches: Whether whole rollouts are labelled at once.

        Raises:
            ValueError: If a layer is unknown, or does not give one vector per environment, or if
                teachers are several.
        """
        self.outputs: dict[str, torch.Tensor] = {}
        """By layer. Shape: (T, N, D) each."""
        self._seen: dict[str, torch.Tensor] = {}
        asked = {name: head.teacher_layer for name, head in heads.items() if head.teacher_layer}
        if not asked:
            return
        if isinstance(teacher, SelectedTeachers):
            name, layer = next(iter(asked.items()))
            raise ValueError(
                f"auxiliary.{name}.target is '{LAYER}{layer}', expected no layer of a teacher"
                " where there are several: each sees only samples of its own, and their layers"
                " differ. Predict an observation group."
            )
        shapes = _shapes_of_layers(teacher, storage)
        for name, layer in asked.items():
            if layer not in shapes or (in_batches and layer.startswith("cnns.")):
                raise ValueError(
                    f"auxiliary.{name}.target is '{LAYER}{layer}', expected a layer of the"
                    " teacher that gives one vector per environment, once, one of"
                    f" {list(shapes)}; none of a CNN with batch_teacher_labels."
                )
        sizes = (storage.num_transitions_per_env, storage.num_envs)
        modules, parameter = dict(teacher.named_modules()), next(teacher.parameters())
        for layer in dict.fromkeys(asked.values()):
            self.outputs[layer] = parameter.new_zeros(*sizes, shapes[layer])
            modules[layer].register_forward_hook(partial(_see, self._seen, layer))

    def keep(self, first_step: int) -> None:
        """Store what the layers gave last, of all environments and the steps from one on."""
        for layer, kept in self.outputs.items():
            rows = self._seen.pop(layer).detach().view(-1, *kept.shape[1:])
            kept[first_step : first_step + len(rows)].copy_(rows)


def _see(seen: dict[str, torch.Tensor], layer: str, _: nn.Module, __: Any, output: Any) -> None:
    seen[layer] = output[0] if isinstance(output, tuple) else output


def _see_all(seen: dict[str, list[Any]], layer: str, _: nn.Module, __: Any, output: Any) -> None:
    seen.setdefault(layer, []).append(output[0] if isinstance(output, tuple) else output)


@torch.no_grad()
def _shapes_of_layers(teacher: MLPModel, storage: RolloutStorage) -> dict[str, int]:
    """Return how long a vector each layer gives per environment, where it gives one.

    One that runs several times in a pass, as rsl_rl's MLP has one activation for all its hidden
    layers, gives none that its name would tell from the others.

    Raises:
        ValueError: If the storage lacks what the teacher observes.
    """
    obs, seen = storage.observations[0], dict[str, list[Any]]()
    stored = list(obs.keys())
    for group in observed_groups(teacher, obs):
        if group not in stored:
            raise ValueError(
                f"auxiliary asks for a layer of the teacher, whose observation group '{group}' the"
                f" storage lacks, expected it among {stored}."
            )
    layers = {name: module for name, module in teacher.named_modules() if name}
    with _as_it_is(teacher), _hooked(layers, lambda layer: partial(_see_all, seen, layer)):
        teacher(obs)
    num_envs = storage.num_envs
    once = {layer: seen[layer][0] for layer in layers if len(seen.get(layer, ())) == 1}
    return {
        layer: output.shape[-1]
        for layer, output in once.items()
        if isinstance(output, torch.Tensor)
        and output.dim() > 1
        and output.numel() == num_envs * output.shape[-1]
    }


@contextlib.contextmanager
def _as_it_is(teacher: MLPModel) -> Iterator[None]:
    """Leave a teacher's mode and state as they are."""
    training, state = teacher.training, teacher.get_hidden_state()
    teacher.eval()  # running statistics are for data
    try:
        yield
    finally:
        teacher.train(training)
        teacher.reset(hidden_state=state)


@contextlib.contextmanager
def _hooked(
    layers: Mapping[str, nn.Module], hook_of: Callable[[str], Callable[..., None]]
) -> Iterator[None]:
    handles = [module.register_forward_hook(hook_of(name)) for name, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class AwaitedTeacher:
    """Stands in ``teacher_loaded`` until a checkpoint brings the teacher.

    rsl_rl's runners ask ``if not teacher_loaded`` when training starts, and only then. So the
    file that ``teacher_checkpoint`` names, or those of several teachers, are read when they ask:
    one who plays or resumes a student has loaded the teacher with it, and does not need the file.
    Where none is named, the refusal is ours, as rsl_rl's own names neither way to give one.
    """

    def __init__(self, is_named: bool, load: Callable[[], None]) -> None:
        """Keep whether the config names the teacher's file, and what reads it."""
        self._is_named, self._load = is_named, load

    def read(self) -> None:
        """Load the teacher from its file, if one is named and was not read yet.

        Raises:
            ValueError: If the file is missing, damaged or does not fit.
        """
        if self._is_named:
            self._load()
            self._is_named = False

    def forget(self) -> None:
        """Await nothing any more: a checkpoint brought the teacher."""
        self._is_named = False

    def __bool__(self) -> bool:
        """Answer the runner: load the teacher and return True.

        Raises:
            ValueError: If no file is named, or it is missing, damaged or does not fit.
        """
        if not self._is_named:
            raise ValueError(
                "teacher_checkpoint is None and no checkpoint was loaded, expected one of the two:"
                " name the teacher's file with --checkpoint FILE (Isaac Lab) or as the option"
                " agent.algorithm.teacher_checkpoint=FILE, in mjlab"
                " --agent.algorithm.teacher-checkpoint FILE, or there its run with"
                " --agent.resume True --agent.load-run '.*_teacher'."
            )
        self.read()
        return True


def check_one_source(teacher: Any, path: str | None) -> bool:
    """Return whether a config names the file of a teacher, or those of several.

    Args:
        teacher: The teacher, or several.
        path: ``teacher_checkpoint``.

    Raises:
        ValueError: If one file is named for several teachers.
    """
    if not isinstance(teacher, SelectedTeachers):
        return path is not None
    if path is not None:
        raise ValueError(
            f"teacher_checkpoint is '{path}', expected None with several teachers: each has its own"
            " file, 'checkpoint' in teacher.teachers."
        )
    return True


def load_teacher(
    teacher: Any, path: str | None, obs: TensorDict, device: torch.device | str
) -> None:
    """Read a teacher from its file, or several from theirs.

    Args:
        teacher: The teacher, or several, which know their files.
        path: File of a single one, or ``FOLDER/latest``.
        obs: Observations of any batch size.
        device: Where tensors are put.

    Raises:
        ValueError: If a file is missing, damaged or does not fit. Nothing is changed then.
    """
    if isinstance(teacher, SelectedTeachers):
        teacher.load_checkpoints()
    elif path is not None:
        path = str(checkpoint_file(path))
        checkpoint = read_checkpoint(path, device)
        state_dict = teacher_state_dict(checkpoint, f"The teacher_checkpoint '{path}'")
        check_fits(teacher, state_dict, "teacher", obs, checkpoint, path, config_advice)
        teacher.load_state_dict(state_dict)


def check_teacher(
    teacher: Any,
    state_dict: Mapping[str, torch.Tensor],
    obs: TensorDict,
    checkpoint: Mapping[str, Any],
    path: str | None,
) -> None:
    """Check that a checkpoint brings the teacher, or several; see ``check_fits``.

    Args:
        teacher: The teacher, or several.
        state_dict: Its part of the checkpoint: parameters and buffers, of any shapes.
        obs: Observations of any batch size.
        checkpoint: The checkpoint.
        path: Its file, or None where that is unknown.

    Raises:
        ValueError: If it does not fit.
    """
    if isinstance(teacher, SelectedTeachers):
        teacher.check_state_dict(state_dict, checkpoint)
    else:
        check_fits(teacher, state_dict, "teacher", obs, checkpoint, path)


class Dagger:
    """Draws the environments of the teacher for each rollout, and mixes the actions."""

    def __init__(
        self, options: DistillationOptions, num_envs: int, device: str | torch.device
    ) -> None:
        """Take the share and its schedule; the teacher acts nowhere until the first draw."""
        self._share, self._last_update = (
            options.teacher_action_share,
            options.teacher_action_updates,
        )
        self._num_envs, self._device = num_envs, device
        self._teacher_acts: torch.Tensor | None = None

    def draw(self, num_updates: int) -> None:
        """Choose where the teacher acts in this rollout, after so many updates."""
        if self._share > 0:
            share = scheduled_share(self._share, num_updates, self._last_update)
            self._teacher_acts = draw_envs(share, self._num_envs, self._device)

    def mix(self, actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the teacher's labels where it acts, elsewhere the student's actions: (N, A).

        A label that is not finite, as where no teacher is selected, reaches no environment.
        """
        if self._teacher_acts is None:
            return actions
        acts = self._teacher_acts & torch.isfinite(labels).all(-1, keepdim=True)
        return torch.where(acts, labels, actions)

    def metrics(self) -> dict[str, torch.Tensor]:
        """Return the share of the environments in this rollout, shape (); empty if unused."""
        if self._teacher_acts is None:
            return {}
        return {"teacher_action_share": self._teacher_acts.float().mean()}


def scheduled_share(share: float, num_updates: int, last_update: int | None) -> float:
    """Return the share of environments that act with the teacher's action, beta_k.

    Args:
        share: The share at the start of training, from 0 to 1.
        num_updates: k, the updates made so far.
        last_update: The number of updates after which the share is 0, falling linearly until then.
            None keeps it constant.

    References:
        Ross, Gordon and Bagnell (2011), A Reduction of Imitation Learning and Structured Prediction
        to No-Regret Online Learning: DAgger, with beta_k falling linearly.
    """
    if last_update is None:
        return share
    return share * max(0.0, 1.0 - num_updates / last_update)


def draw_envs(share: float, num_envs: int, device: str | torch.device) -> torch.Tensor:
    """Draw exactly ``round(share * num_envs)`` environments, without host synchronisation.

    No random number is drawn where that count is 0.

    Args:
        share: From 0 to 1.
        num_envs: N.
        device: Device of the result.

    Returns:
        True for the drawn environments. Shape: (N, 1), bool.
    """
    num_drawn = round(share * num_envs)
    if num_drawn == 0:
        return torch.zeros(num_envs, 1, dtype=torch.bool, device=device)
    return torch.randperm(num_envs, device=device).unsqueeze(-1) < num_drawn
