"""Several teachers in place of one; a selector chooses the teacher that labels each sample."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.checkpoints.reading import checkpoint_file, read_checkpoint
from rsl_tbptt.compat.versions import (
    GaussianDistribution,
    MLPModel,
    import_function,
    resolve_callable,
    teacher_state_dict,
)
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.models.controller import Untrained, has_parameters, unwritten


class SelectedTeachers(Untrained):
    """Teachers of any architectures and observation groups; one of them labels each sample.

    It follows rsl_rl's model interface and takes the place of a teacher in a config. All teachers
    run on all rows, so the state of one has no gap while another is selected::

        selected     0  1  1  0     by environment, at every step
        output       of the selected teacher, NaN where none is

    Teachers are never trained. The first forward pass or ``load_checkpoints`` reads them from their
    files, unless ``load_state_dict`` has loaded all of them, as it does for a student that is
    resumed or plays.
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
            obs_set: The set of teachers without ``"obs_groups"``.
            output_dim: Number of actions A.
            selector: Selects the number of each environment's teacher, its place in ``teachers``:
                an observation group of one number, or a function (or its qualified name) from
                observations, batch size (rows,), to numbers, shape (rows,).
            teachers: By name a mapping of ``"cfg"``, a model's config (``"class_name"`` and the
                arguments of that class), ``"checkpoint"``, the file of PPO or distillation that
                has its parameters, and ``"obs_groups"``, the groups that it observes.
            distribution_cfg: Must be None: each teacher has its own. (Isaac Lab's scripts look for
                it in every model's config.)

        Raises:
            ValueError: If a config cannot be built or names an unknown group, or if the selector
                selects no teacher somewhere in ``obs``.
        """
        super().__init__()
        if distribution_cfg is not None:
            raise ValueError(
                f"distribution_cfg is {distribution_cfg}, expected None with several teachers: each"
                " has its own, in its 'cfg'."
            )
        if not isinstance(teachers, Mapping):
            raise ValueError(
                f"teachers is a {type(teachers).__name__}, expected a mapping of names to teachers:"
                " checkpoints keep teachers by name."
            )
        groups = {n: each.get("obs_groups") or obs_groups[obs_set] for n, each in teachers.items()}
        models = {
            name: _build(name, teacher, groups[name], obs, output_dim)
            for name, teacher in teachers.items()
        }
        self.obs_groups = list(dict.fromkeys(chain(*groups.values())))
        """The groups that any teacher observes."""
        self.teachers = nn.ModuleDict(models).requires_grad_(False).eval()
        self.is_read = False
        """Whether the teachers have their parameters."""
        self.selector = Selector(selector, [*teachers], obs)
        self._selected = torch.empty(0, dtype=torch.int64)  # in the newest pass, (rows,)
        self._paths = {name: cfg.get("checkpoint") for name, cfg in teachers.items()}
        for name, path in self._paths.items():
            check_teacher_file(models[name], path, f"teachers.{name}.checkpoint")
        self._shapes = obs[:0].clone()

    @property
    def observed_groups(self) -> list[str] | None:
        """The groups that teachers and selector read; None if a function may read any group."""
        group = self.selector.group
        return None if group is None else list(dict.fromkeys([*self.obs_groups, group]))

    @property
    def files(self) -> list[str]:
        """The teachers' files; a teacher without parameters needs none."""
        return [path for path in self._paths.values() if path is not None]

    @property
    def is_recurrent(self) -> bool:
        """Whether any teacher has memory."""
        return any(model.is_recurrent for model in self._models)

    @property
    def why_nan(self) -> str:
        """Why outputs may be NaN, for messages."""
        return f" (NaN where {self.selector.described} is none of {self.selector.expected})"

    def load_checkpoints(self) -> None:
        """Read the teachers that no checkpoint has brought from their files.

        Raises:
            ValueError: If a file is not named, missing, damaged or does not fit. Nothing is changed
                then.
        """
        with torch.inference_mode(False):  # a rollout disables gradients
            named = self.teachers.items()
            states = {n: self._read(n, model) for n, model in named if has_parameters(model)}
            for name, state_dict in states.items():
                self.teachers[name].load_state_dict(state_dict)
        self.is_read = True

    def _read(self, name: str, model: nn.Module) -> Mapping[str, torch.Tensor]:
        """Read a teacher's parameters and buffers from its file.

        Raises:
            ValueError: If the file is not named, missing, damaged or does not fit.
        """
        path = self._paths[name]
        if path is None:
            raise ValueError(
                f"teacher.teachers.{name}.checkpoint is None, expected the teacher's file: no"
                " checkpoint of a distillation has brought the teachers."
            )
        try:
            return read_teacher(model, path, role_of(name), self._shapes)
        except ValueError as error:
            raise ValueError(
                f"The teacher '{name}' cannot be loaded from '{path}'. {error}"
            ) from error

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the parameters of all teachers, as torch's modules do, in place of their files.

        Args:
            state_dict: State of a model with the same teachers, of any shapes.
            strict: Whether the names must match exactly.
            assign: Whether tensors are assigned instead of copied.

        Returns:
            The missing names and the unexpected names.
        """
        self.is_read = True
        return super().load_state_dict(state_dict, strict, assign)

    def forward(
        self,
        obs: TensorDict,
        masks: None = None,
        hidden_state: None = None,
        stochastic_output: bool = False,
    ) -> torch.Tensor:
        """Return the outputs of the selected teachers.

        Args:
            obs: Observations, batch size (rows,). If a teacher has memory, rows are the
                environments at one step.
            masks: Unused: teachers are not trained.
            hidden_state: Unused.
            stochastic_output: Whether teachers sample. The properties below then describe the
                distributions of this pass.

        Returns:
            Outputs, shape (rows, A); NaN where the selector selects no teacher.

        Raises:
            ValueError: If the teachers' files are needed, and one is missing or does not fit.
        """
        if not self.is_read:
            self.load_checkpoints()
        self._selected = self.selector(obs)
        return self._select(
            [model(obs, stochastic_output=stochastic_output) for model in self._models]
        )

    @property
    def distribution(self) -> nn.Module | None:
        """The first teacher's distribution if all are of its kind or Gaussian, otherwise None.

        Use it for its kind only: its parameters are those of the first teacher.
        """
        found = [model.distribution for model in self._models]
        kinds = {type(each) for each in found}
        alike = len(kinds) == 1 or all(issubclass(kind, GaussianDistribution) for kind in kinds)
        return found[0] if alike else None

    @property
    def output_mean(self) -> torch.Tensor:
        """Means of the newest stochastic forward pass, shape (rows, A); NaN without a teacher."""
        return self._select([model.output_mean for model in self._models])

    @property
    def output_std(self) -> torch.Tensor:
        """Standard deviations of that pass, shape (rows, A)."""
        return self._select([model.output_std for model in self._models])

    @property
    def output_distribution_params(self) -> tuple[torch.Tensor, ...]:
        """Parameters of that pass's distributions, shape (rows, A) each."""
        params = zip(*(model.output_distribution_params for model in self._models), strict=True)
        return tuple(self._select(of_models) for of_models in params)

    def reset(self, dones: torch.Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Clear the teachers' states where an episode ended, (N,), or all of them."""
        for model in self._models:
            model.reset(dones)

    def get_hidden_state(self) -> HiddenState:
        """Return None: each teacher has its own state."""
        return None

    @property
    def _models(self) -> list[Any]:
        return list(self.teachers.values())

    def _select(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of the selected teachers, given outputs of all, (rows, A) each."""
        selected = torch.full_like(outputs[0], torch.nan)
        for number, output in enumerate(outputs):
            is_own = (self._selected == number).unsqueeze(-1)
            selected = torch.where(is_own, output, selected)
        return selected


class Selector:
    """Reads the number of each row's teacher from observations."""

    def __init__(
        self,
        selector: str | Callable[[TensorDict], torch.Tensor],
        names: Sequence[str],
        obs: TensorDict,
    ) -> None:
        """Find the observation group or function, and call it once.

        Args:
            selector: An observation group of numbers, a function of observations of batch size
                (rows,), or its qualified name.
            names: The teachers in the order of their numbers, which start at 0.
            obs: The first observations, batch size (N,).

        Raises:
            ValueError: If there is no such group or function, or if it fails or selects no teacher
                somewhere in the first observations.
        """
        self._num_teachers = len(names)
        self.expected = ", ".join(f"{number} ({name})" for number, name in enumerate(names))
        """The valid numbers, for messages."""
        self.group: str | None = None
        """The observation group with the numbers; None for a function, which may read any."""
        if isinstance(selector, str) and selector in obs:
            self.group = selector
            self.described = f"the observation group '{selector}'"
            self._read = lambda seen: seen[selector]
        else:
            self.described = f"the function {selector!r}"
            self._read = import_function("selector", selector, map(str, obs.keys()))
        try:
            with unwritten("It", dict(obs.items())):
                values, numbers = self._read(obs), self(obs)
            if numbers.shape != obs.batch_size:
                raise ValueError(f"shape {tuple(values.shape)} for {len(obs)} environments")
            for env in (numbers < 0).nonzero().flatten().tolist():
                raise ValueError(f"{values.reshape(-1)[env].item():g} in environment {env}")
        except Exception as error:  # your function can raise anything
            raise ValueError(
                f"The selector, {self.described}, fails on the first observations"
                f" ({type(error).__name__}: {error}), expected for each environment one of"
                f" {self.expected}: a teacher's number is its place in 'teachers'."
            ) from error

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Return the number of each row's teacher, without host synchronisation.

        Args:
            obs: Observations, batch size (rows,).

        Returns:
            Numbers, shape (rows,), int64; -1 where the selector selects no teacher.
        """
        values = self._read(obs).reshape(-1)
        number = values.long()
        # A number that is not an integer, or NaN, selects no teacher.
        named = (number == values) & (number >= 0) & (number < self._num_teachers)
        return number.masked_fill(~named, -1)


def role_of(name: str) -> str:
    """Return the place of a teacher's config in the agent's, for messages and checkpoints."""
    return f"teacher.teachers.{name}.cfg"


def models_by_role(teacher: Any) -> dict[str, Any]:
    """Return a single teacher by the role "teacher", or several by the role of each."""
    if isinstance(teacher, SelectedTeachers):
        return {role_of(name): model for name, model in teacher.teachers.items()}
    return {"teacher": teacher}


def _build(
    name: str, teacher: Mapping[str, Any], groups: Sequence[str], obs: TensorDict, num_actions: int
) -> MLPModel:
    """Build a teacher from its entry of the config.

    Raises:
        ValueError: If that cannot be.
    """
    try:
        if isinstance(groups, str) or teacher.keys() - {"cfg", "checkpoint", "obs_groups"}:
            raise ValueError(f"it has {sorted(teacher)}, with obs_groups {groups!r}")
        arguments = copy.deepcopy(dict(teacher["cfg"]))  # models remove entries from it
        model_class: Any = resolve_callable(arguments.pop("class_name"))
        return model_class(obs, {"teacher": [*groups]}, "teacher", num_actions, **arguments)
    except Exception as error:  # your class can raise anything
        raise ValueError(
            f"The teacher '{name}' cannot be built from teacher.teachers.{name}"
            f" ({type(error).__name__}: {error}): expected 'cfg', the config of the model that was"
            " trained, 'class_name' included, and perhaps 'checkpoint' and a list 'obs_groups'."
        ) from error


def check_teacher_file(teacher: Any, path: str | None, option: str = "teacher_checkpoint") -> None:
    """Refuse a file for a teacher that needs none, or for several, which name their own.

    Args:
        teacher: The teacher, or several.
        path: The file, if one is named.
        option: Name of the option.

    Raises:
        ValueError: If there is such a file.
    """
    if path is None:
        return
    if isinstance(teacher, SelectedTeachers):
        raise ValueError(
            f"{option} is '{path}', expected None with several teachers: each has its own file,"
            " 'checkpoint' in 'teachers'."
        )
    if not has_parameters(teacher):
        raise ValueError(
            f"{option} is '{path}', expected None: the teacher, {teacher}, has no parameters to"
            " load."
        )


def check_teacher(
    teacher: Any,
    state_dict: Mapping[str, torch.Tensor],
    obs: TensorDict,
    checkpoint: Mapping[str, Any],
    path: str | None = None,
) -> None:
    """Check that a checkpoint's teacher, or several, fit; see ``check_fits``.

    Args:
        teacher: The teacher, or several.
        state_dict: Their parameters and buffers from the checkpoint, of any shapes.
        obs: Observations of any batch size.
        checkpoint: The checkpoint.
        path: Path of the checkpoint, or None if it is unknown.

    Raises:
        ValueError: If they do not fit.
    """
    if not isinstance(teacher, SelectedTeachers):
        check_fits(teacher, state_dict, "teacher", obs, checkpoint, path)
        return
    parts: dict[str, dict[str, torch.Tensor]] = {name: {} for name in teacher.teachers}
    for key, tensor in state_dict.items():
        _, name, parameter = [*key.split(".", 2), "", ""][:3]
        if name not in parts:
            raise ValueError(
                f"The checkpoint holds '{key}', which belongs to none of the teachers"
                f" {[*parts]}: expected a distillation's from these. Name a single teacher's file"
                " by its own 'checkpoint' in the config."
            )
        parts[name][parameter] = tensor
    models: Any = teacher.teachers
    for name, part in parts.items():
        check_fits(models[name], part, role_of(name), obs, checkpoint)


def read_teacher(model: Any, path: str, role: str, obs: TensorDict) -> Mapping[str, torch.Tensor]:
    """Read a teacher's parameters and buffers, of any shapes, from its file.

    If the model has the form of a distillation's student, that student is read, with a warning.

    Args:
        model: The teacher; they are not loaded into it yet.
        path: The file of PPO or distillation, or ``FOLDER/latest``.
        role: Place of the teacher's config, for messages; see ``check_fits``.
        obs: Observations of any batch size.

    Raises:
        ValueError: If the file is missing, damaged or does not fit, or if the student and the
            teacher in it both fit.
    """
    path = str(checkpoint_file(path))
    checkpoint = read_checkpoint(path, next(model.parameters()).device)
    student, form = checkpoint.get("student_state_dict", {}), _form(model.state_dict())
    if _form(student) != form:
        state_dict = teacher_state_dict(checkpoint, f"The checkpoint '{path}'")
    elif _form(checkpoint.get("teacher_state_dict", {})) == form:
        raise ValueError(
            f"The checkpoint '{path}' holds a student and a teacher, and the {role} has the form of"
            " both, expected one of them: save the one that should teach as 'actor_state_dict' in a"
            " file of its own."
        )
    else:
        warnings.warn(f"The {role} is the student in '{path}', whose form it has.", stacklevel=2)
        models = checkpoint.get("rsl_tbptt", {}).get("models", {})
        described = {role: models["student"]} if "student" in models else {}
        checkpoint, state_dict = {"rsl_tbptt": {"models": described}}, student
    check_fits(model, state_dict, role, obs, checkpoint, path)
    return state_dict


def _form(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state_dict.items()}


def load_teacher(model: Any, path: str | None, obs: TensorDict, ranks: Ranks) -> None:
    """Load a teacher, or several, from their files on each rank; see :func:`read_teacher`.

    Args:
        model: The teacher, or several, which know their own files.
        path: The file of a single teacher.
        obs: Observations of any batch size.
        ranks: The processes that train together.

    Raises:
        ValueError: If a file is missing, damaged or does not fit. Nothing is changed then.
    """

    def load() -> None:
        if isinstance(model, SelectedTeachers):
            model.load_checkpoints()
        else:
            model.load_state_dict(read_teacher(model, str(path), "teacher", obs))

    with torch.inference_mode(False):  # the runner's rollout disables gradients
        ranks.run_together(load)
