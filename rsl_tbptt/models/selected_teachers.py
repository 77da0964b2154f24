"""Several teachers in the place of one; each sample is labelled by the one that is selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.compat.versions import GaussianDistribution
from rsl_tbptt.models.selector import resolve_selector
from rsl_tbptt.models.teacher_configs import role_of
from rsl_tbptt.models.teacher_group import TeacherGroup

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
