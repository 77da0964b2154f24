"""Several teachers in the place of one; each sample is labelled by the one that is selected."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.checkpoints.reading import (
    checkpoint_file,
    config_advice,
    read_checkpoint,
    teacher_state_dict,
)
from rsl_tbptt.compat.versions import GaussianDistribution, MLPModel, resolve_callable
from rsl_tbptt.core import hidden_state as hidden_states
from rsl_tbptt.core.hidden_state import HiddenState

NONE = -1
"""The number of no teacher."""


@dataclass(frozen=True)
class Selector:
    """Reads from observations which teacher each row belongs to."""

    read: Callable[[TensorDict], torch.Tensor]
    """Maps observations, batch size (rows,), to numbers, shape (rows,) or (rows, 1)."""

    described: str
    """What it is, for messages."""

    names: tuple[str, ...]
    """The teachers in the order of their numbers, which begin with 0."""

    group: str | None = None
    """The observation group that holds the numbers; None of a function, which may read any."""

    @property
    def expected(self) -> str:
        """What numbers it may give, for messages."""
        return ", ".join(f"{number} ({name})" for number, name in enumerate(self.names))

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return the number of each row's teacher, without host synchronisation.

        Args:
            obs: Observations, batch size (rows,).

        Returns:
            Numbers, shape (rows,), int64; ``NONE`` where the selector names no teacher.
        """
        values = self.read(obs).reshape(-1)
        number = values.long()
        # A number between two teachers, or a NaN, names none.
        named = (number == values) & (number >= 0) & (number < len(self.names))
        return number.masked_fill(~named, NONE)

    def check(self, obs: TensorDict) -> None:
        """Check what the selector gives for the first observations.

        Args:
            obs: Observations of all environments, batch size (N,).

        Raises:
            ValueError: If it fails, gives another shape, or names no teacher somewhere.
        """
        try:
            values = self.read(obs)
            number = self(obs)
        except Exception as error:  # a user's function can raise anything
            raise ValueError(
                f"The selector, {self.described}, fails on the first observations ({error}):"
                " expected a number for each environment."
            ) from error
        if number.shape != obs.batch_size:
            raise ValueError(
                f"The selector, {self.described}, gives shape {tuple(values.shape)}, expected"
                f" ({obs.batch_size[0]},) or ({obs.batch_size[0]}, 1): one number of a teacher for"
                " each environment."
            )
        bad = (number == NONE).nonzero().flatten().tolist()
        if bad:
            value = values.reshape(-1)[bad[0]].item()
            raise ValueError(
                f"The selector, {self.described}, is {value:g} in environment {bad[0]}, expected"
                f" one of {self.expected}: a teacher's number is its place in 'teachers'."
            )


def resolve_selector(
    selector: str | Callable[[TensorDict], torch.Tensor], names: Sequence[str], obs: TensorDict
) -> Selector:
    """Return the selector that a config names.

    Args:
        selector: An observation group that holds numbers, a function of observations of batch size
            (rows,), or its qualified name.
        names: The teachers.
        obs: The first observations, batch size (N,).

    Raises:
        ValueError: If there is no such group or function, or if it names no teacher somewhere in
            the first observations.
    """
    if isinstance(selector, str) and selector in obs:
        group = selector
        described = f"the observation group '{group}'"
        found = Selector(lambda seen: seen[group], described, tuple(names), group)
    else:
        if isinstance(selector, str) and not {":", "."} & set(selector):
            raise ValueError(
                f"selector is '{selector}', expected an observation group, one of"
                f" {sorted(map(str, obs.keys()))}, or the qualified name of a function, such as"
                " 'my_package.skills:which'."
            )
        try:
            function = resolve_callable(selector)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"selector is {selector!r}, which cannot be imported ({error}): expected an"
                " observation group or the qualified name of a function, such as"
                " 'my_package.skills:which'."
            ) from error
        found = Selector(function, f"the function {selector!r}", tuple(names))
    found.check(obs)
    return found


_KEYS = ("cfg", "checkpoint", "obs_groups")
"""What a teacher's config may have."""


def role_of(name: str) -> str:
    """Return where a teacher's config stands in the agent's, for messages and checkpoints."""
    return f"teacher.teachers.{name}.cfg"


def check_names(teachers: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the names and keys of teachers.

    Raises:
        ValueError: If there is none, or a name or key cannot be.
    """
    if not teachers:
        raise ValueError("teachers is empty, expected the config of each teacher by its name.")
    taken = nn.ModuleDict()
    for name, teacher in teachers.items():
        if not str(name).isidentifier() or hasattr(taken, name):
            raise ValueError(
                f"teachers has the name {name!r}, expected a word of letters, digits and"
                " underscores that torch's modules do not use: rename it."
            )
        unknown = sorted(set(teacher) - set(_KEYS))
        if unknown or "cfg" not in teacher:
            raise ValueError(
                f"teachers['{name}'] has the keys {sorted(teacher)}, expected 'cfg' and, of"
                f" 'checkpoint' and 'obs_groups', any: the model's own arguments stand in 'cfg'."
            )


def groups_of(
    name: str, teacher: Mapping[str, Any], obs: TensorDict, default: Sequence[str]
) -> Sequence[str]:
    """Return what a teacher observes.

    Raises:
        ValueError: If it is nothing, or a group is unknown.
    """
    groups = teacher.get("obs_groups")
    groups = default if groups is None else groups
    known = sorted(map(str, obs.keys()))
    if isinstance(groups, str) or not groups:
        raise ValueError(
            f"The teacher '{name}' has obs_groups {groups!r}, expected a list of observation"
            f" groups, some of {known}."
        )
    for group in groups:
        if group not in obs:
            raise ValueError(
                f"The teacher '{name}' has the observation group '{group}', expected one of"
                f" {known}: the environment gives no other."
            )
    return groups


def build(
    name: str, teacher: Mapping[str, Any], obs: TensorDict, groups: Sequence[str], num_actions: int
) -> MLPModel:
    """Build a teacher's model.

    Args:
        name: Its name.
        teacher: Its config.
        obs: Observations of any batch size.
        groups: What it observes.
        num_actions: A.

    Raises:
        ValueError: If that fails.
    """
    arguments = copy.deepcopy(dict(teacher["cfg"]))  # models take entries out of it
    try:
        model_class: Any = resolve_callable(arguments.pop("class_name"))
        return model_class(obs, {"teacher": list(groups)}, "teacher", num_actions, **arguments)
    except Exception as error:  # a user's class can raise anything
        raise ValueError(
            f"The teacher '{name}' cannot be built from {role_of(name)}"
            f" ({type(error).__name__}: {error}): expected the config of the model that was"
            " trained, 'class_name' included."
        ) from error


def read_teacher(
    name: str, teacher: Any, path: str | None, obs: TensorDict
) -> Mapping[str, torch.Tensor]:
    """Read a teacher's parameters and buffers, of any shapes, from its file.

    Args:
        name: Its name.
        teacher: Its model, which is not changed.
        path: The file, of PPO or distillation, or ``FOLDER/latest``.
        obs: Observations of any batch size.

    Raises:
        ValueError: If the file is not named, missing, damaged or does not fit.
    """
    if path is None:
        raise ValueError(
            f"The checkpoint of the teacher '{name}' is None, expected its file: no checkpoint"
            " of a distillation brought the teachers, so set"
            f" 'teacher.teachers.{name}.checkpoint'."
        )
    try:
        path = str(checkpoint_file(path))
        checkpoint = read_checkpoint(path, next(teacher.parameters()).device)
        state_dict = teacher_state_dict(checkpoint, "The checkpoint")
        check_fits(teacher, state_dict, role_of(name), obs, checkpoint, path, config_advice)
    except ValueError as error:
        raise ValueError(f"The teacher '{name}' cannot be loaded from '{path}'. {error}") from error
    return state_dict


def check_teachers(
    teachers: nn.ModuleDict,
    state_dict: Mapping[str, torch.Tensor],
    obs: TensorDict,
    checkpoint: Mapping[str, Any],
) -> None:
    """Check that a checkpoint holds these teachers.

    Args:
        teachers: Their models by name.
        state_dict: Parameters and buffers of all of them, of any shapes.
        obs: Observations of any batch size.
        checkpoint: What that is a part of.

    Raises:
        ValueError: If it holds others, or one is known to have been configured otherwise.
    """
    own = {name: f"teachers.{name}." for name in teachers}
    for key in state_dict:
        if not key.startswith(tuple(own.values())):
            raise ValueError(
                f"The checkpoint holds '{key}', which is of none of the teachers {list(own)}:"
                " expected that of a distillation from these. A single teacher's file is named by"
                " its own 'checkpoint' in the config."
            )
    for name, prefix in own.items():
        part = {
            key.removeprefix(prefix): tensor
            for key, tensor in state_dict.items()
            if key.startswith(prefix)
        }
        model: Any = teachers[name]
        check_fits(model, part, role_of(name), obs, checkpoint)


class TeacherGroup(nn.Module):
    """Teachers of any architectures and observation groups, which are never trained.

    Each is read from its file by ``load_checkpoints``, unless ``load_state_dict`` brings all of
    them, as with the checkpoint of a student that is resumed or plays.
    """

    def __init__(
        self,
        obs: TensorDict,
        default_groups: Sequence[str],
        output_dim: int,
        teachers: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Build the teachers; their files are not needed yet.

        Args:
            obs: Observations of all environments, batch size (N,).
            default_groups: What those observe that name no groups of their own.
            output_dim: Number of actions A.
            teachers: See :class:`~rsl_tbptt.models.teacher_group.SelectedTeachers`.

        Raises:
            ValueError: If a config cannot be built or names an unknown group.
        """
        super().__init__()
        check_names(teachers)
        self.names = tuple(teachers)
        """The teachers in the order of their numbers."""
        self._groups = {
            name: list(groups_of(name, cfg, obs, default_groups)) for name, cfg in teachers.items()
        }
        self.obs_groups = list(
            dict.fromkeys(group for own in self._groups.values() for group in own)
        )
        """What any of them observes."""
        built = {
            name: build(name, cfg, obs, self._groups[name], output_dim)
            for name, cfg in teachers.items()
        }
        self.teachers = nn.ModuleDict(built).requires_grad_(False).eval()
        self._paths = {name: cfg.get("checkpoint") for name, cfg in teachers.items()}
        self._shapes = obs[:0].clone()
        self.loaded = False
        """Whether the teachers have their parameters."""
        self._state_forms: list[hidden_states.Form] = []

    @property
    def is_recurrent(self) -> bool:
        """Whether any teacher has memory."""
        return bool(self._recurrent())

    def load_checkpoints(self) -> None:
        """Read the teachers from their files.

        Raises:
            ValueError: If one is not named, missing, damaged or does not fit. Nothing is changed
                then.
        """
        with torch.inference_mode(False):  # a rollout has no gradients
            states = {
                name: read_teacher(name, teacher, self._paths[name], self._shapes)
                for name, teacher in self.teachers.items()
            }
            for name, state_dict in states.items():
                self.teachers[name].load_state_dict(state_dict)
        self.loaded = True

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take the parameters of all teachers, as torch's modules do; their files are not needed.

        Args:
            state_dict: Of a model with the same teachers, of any shapes.
            strict: Whether the names must match exactly.
            assign: Whether tensors are taken instead of copied.

        Returns:
            The names that are missing and those that were not expected.
        """
        result = super().load_state_dict(state_dict, strict, assign)
        self.loaded = True
        return result

    def check_state_dict(
        self, state_dict: Mapping[str, torch.Tensor], checkpoint: Mapping[str, Any]
    ) -> None:
        """Check that ``load_state_dict`` can take the teachers of a checkpoint.

        Args:
            state_dict: Parameters and buffers, of any shapes.
            checkpoint: What it is a part of.

        Raises:
            ValueError: If it holds other teachers, or one is known to have been configured
                otherwise.
        """
        check_teachers(self.teachers, state_dict, self._shapes, checkpoint)

    def reset(self, dones: torch.Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Clear the teachers' states where an episode ended, (N,), or set all of them.

        Args:
            dones: Which episodes ended. Shape: (N,). None sets the states.
            hidden_state: What :meth:`get_hidden_state` returned; None clears them.
        """
        if dones is not None or hidden_state is None:
            for teacher in self._recurrent():
                teacher.reset(dones)
            return
        states = hidden_states.unpack(hidden_state, self._state_forms)
        for teacher, state in zip(self._recurrent(), states, strict=True):
            teacher.reset(hidden_state=state)

    def get_hidden_state(self) -> HiddenState:
        """Return the states of all teachers side by side, (1, N, F); None before the first step."""
        states = [teacher.get_hidden_state() for teacher in self._recurrent()]
        self._state_forms = [hidden_states.form_of(state) for state in states]
        return hidden_states.pack(states)

    def detach_hidden_state(self, dones: torch.Tensor | None = None) -> None:
        """Do nothing, as no gradient reaches a teacher. ``dones``: (N,)."""

    def update_normalization(self, obs: TensorDict) -> None:
        """Do nothing: teachers keep the statistics of their training."""

    def _models(self) -> list[Any]:
        return list(self.teachers.values())

    def _recurrent(self) -> list[Any]:
        return [teacher for teacher in self._models() if teacher.is_recurrent]


_ALL = slice(None)

Rows = slice | torch.Tensor | None
"""The rows that a teacher runs on: all, some by their numbers, shape (n,), or none."""


class SelectedTeachers(TeacherGroup):
    """Teachers of any architectures and observation groups, one of which labels each sample.

    It follows rsl_rl's model interface and stands where a config has a teacher::

        selected               0  1  1  0     by environment, at every step
        without memory         rows of its own on a CPU; all rows on a GPU, where choosing some
                               would make the host wait
        recurrent              all rows: its memory has no gap while another one is selected
        output                 rows of the selected teacher, NaN where none is

    Teachers are never trained. Each is read from its file when the first forward pass needs it or
    ``load_checkpoints`` is called, unless ``load_state_dict`` brought all of them before, as with
    the checkpoint of a student that is resumed or plays.
    """

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: Mapping[str, Sequence[str]],
        obs_set: str,
        output_dim: int,
        selector: str | Callable[[TensorDict], torch.Tensor],
        teachers: Mapping[str, Mapping[str, Any]],
        distribution_cfg: None = None,
    ) -> None:
        """Build the teachers; their files are not needed yet.

        Args:
            obs: Observations of all environments, batch size (N,).
            obs_groups: Observation groups by set.
            obs_set: The set of teachers that name no groups of their own.
            output_dim: Number of actions A.
            selector: What gives the number of each environment's teacher, its place in
                ``teachers``: an observation group of one number, or a function (or its qualified
                name) of observations, batch size (rows,), that returns numbers, shape (rows,).
            teachers: By name a mapping of ``"cfg"``, a model's config (``"class_name"`` and the
                arguments of that class), ``"checkpoint"``, the file of PPO or distillation that
                holds its parameters, and ``"obs_groups"``, what it observes.
            distribution_cfg: Must be None: each teacher has its own. (Isaac Lab's scripts look for
                it in every model's config.)

        Raises:
            ValueError: If a config cannot be built, names an unknown group, or if the selector
                names no teacher somewhere in ``obs``.
        """
        if distribution_cfg is not None:
            raise ValueError(
                f"distribution_cfg is {distribution_cfg}, expected None with several teachers: each"
                " has its own, in its 'cfg'."
            )
        super().__init__(obs, obs_groups[obs_set], output_dim, teachers)
        self.selector = resolve_selector(selector, self.names, obs)
        """Gives each row the number of its teacher."""
        self.selected: torch.Tensor | None = None
        """The numbers of the newest forward pass, -1 for none. Shape: (rows,), int64."""
        self._rows: list[Rows] = []

    @property
    def observed_groups(self) -> list[str] | None:
        """What teachers and selector read; None where a function may read any group."""
        group = self.selector.group
        return None if group is None else list(dict.fromkeys([*self.obs_groups, group]))

    def forward(
        self,
        obs: TensorDict,
        masks: None = None,
        hidden_state: None = None,
        stochastic_output: bool = False,
    ) -> torch.Tensor:
        """Return the outputs of the selected teachers.

        Args:
            obs: Observations, batch size (rows,): the environments, at one step where a teacher has
                memory.
            masks: Unused: teachers are not trained.
            hidden_state: Unused.
            stochastic_output: Whether teachers sample; those properties that describe their
                distributions are then of this pass.

        Returns:
            Outputs, shape (rows, A); NaN where the selector names no teacher.

        Raises:
            ValueError: If the teachers' files are needed, and one is missing or does not fit.
        """

        def run(name: str, seen: TensorDict) -> tuple[torch.Tensor]:
            return (self.teachers[name](seen, stochastic_output=stochastic_output),)

        (outputs,) = self.run(obs, run)
        return outputs

    def run(
        self, obs: TensorDict, run_one: Callable[[str, TensorDict], Sequence[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Run the teachers, each on the rows that it has to see, and join what they return.

        Args:
            obs: Observations, batch size (rows,).
            run_one: Maps a teacher's name and the observations of n rows to tensors, (n, A) each.

        Returns:
            The selected teachers' tensors, shape (rows, A); NaN where none is selected.

        Raises:
            ValueError: If the teachers' files are needed, and one is missing or does not fit.
        """
        if not self.loaded:
            self.load_checkpoints()
        self.selected = self.selector(obs)
        self._rows = [self._rows_of(number) for number in range(len(self.names))]
        if all(rows is None for rows in self._rows):  # NaN has a shape, too
            self._rows[0] = _ALL
        return self._join(
            [
                None if rows is None else run_one(name, self._seen(name, obs, rows))
                for name, rows in zip(self.names, self._rows, strict=True)
            ]
        )

    @property
    def distribution(self) -> nn.Module | None:
        """The first teacher's distribution, where all are of its kind or Gaussian; else None.

        It tells the kind alone: what it holds is of the first teacher.
        """
        found = [teacher.distribution for teacher in self._models()]
        kinds = {type(each) for each in found}
        alike = len(kinds) == 1 or all(issubclass(kind, GaussianDistribution) for kind in kinds)
        return found[0] if alike else None

    @property
    def output_mean(self) -> torch.Tensor:
        """The means of the newest stochastic forward pass, shape (rows, A); NaN as its outputs."""
        return self._join_each(lambda teacher: (teacher.output_mean,))[0]

    @property
    def output_std(self) -> torch.Tensor:
        """Its standard deviations, shape (rows, A)."""
        return self._join_each(lambda teacher: (teacher.output_std,))[0]

    @property
    def output_distribution_params(self) -> tuple[torch.Tensor, ...]:
        """The parameters of its distributions, shape (rows, A) each."""
        return tuple(self._join_each(lambda teacher: teacher.output_distribution_params))

    def _rows_of(self, number: int) -> Rows:
        assert self.selected is not None
        if self._models()[number].is_recurrent or not _choosing_is_cheap(self.selected):
            return _ALL
        rows = (self.selected == number).nonzero().squeeze(1)
        if len(rows) == len(self.selected):
            return _ALL
        return rows if len(rows) else None

    def _seen(self, name: str, obs: TensorDict, rows: slice | torch.Tensor) -> TensorDict:
        return obs if isinstance(rows, slice) else obs.select(*self._groups[name])[rows]

    def _join_each(self, read: Callable[[Any], Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Join what is read from each teacher that ran, (its rows, A) each, as (rows, A)."""
        pairs = zip(self._models(), self._rows, strict=True)
        return self._join([None if rows is None else read(teacher) for teacher, rows in pairs])

    def _join(self, outputs: Sequence[Sequence[torch.Tensor] | None]) -> list[torch.Tensor]:
        """Join the tensors of each teacher, (its rows, A), as (rows, A)."""
        ran = [
            (number, rows, tensors)
            for number, (rows, tensors) in enumerate(zip(self._rows, outputs, strict=True))
            if tensors is not None
        ]
        selected = selected_by(self)
        return [
            _join_one(selected, [(number, rows, tensors[index]) for number, rows, tensors in ran])
            for index in range(len(ran[0][2]))
        ]


def selected_by(teachers: Any) -> torch.Tensor:
    """Return each row's teacher in the newest forward pass, -1 for none. Shape: (rows,)."""
    assert teachers.selected is not None
    return teachers.selected


def _join_one(
    selected: torch.Tensor, outputs: Sequence[tuple[int, Rows, torch.Tensor]]
) -> torch.Tensor:
    """Return each row's output of its teacher, shape (rows, A); NaN where none is selected.

    Args:
        selected: The number of each row's teacher. Shape: (rows,).
        outputs: The number of a teacher, its rows, and what it returned for them, (n, A).
    """
    _, _, first = outputs[0]
    joined = first.new_full((len(selected), *first.shape[1:]), torch.nan)
    for number, rows, output in outputs:
        if isinstance(rows, slice):
            joined = torch.where((selected == number).unsqueeze(-1), output, joined)
        else:
            joined[rows] = output
    return joined


def models_by_role(teacher: Any) -> dict[str, Any]:
    """Return a teacher as the one of its role, or several by the roles of each."""
    if isinstance(teacher, SelectedTeachers):
        return {role_of(name): model for name, model in teacher.teachers.items()}
    return {"teacher": teacher}


def _choosing_is_cheap(selected: torch.Tensor) -> bool:
    """Return whether the host knows numbers, (rows,), without waiting for a device."""
    return selected.device.type == "cpu"
