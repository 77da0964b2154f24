"""The teacher of a distillation before any checkpoint brought it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.checkpoints.latest import checkpoint_file
from rsl_tbptt.checkpoints.reading import read_checkpoint
from rsl_tbptt.checkpoints.trained_models import check_fits
from rsl_tbptt.compat.versions import config_advice, teacher_state_dict
from rsl_tbptt.models.selected_teachers import SelectedTeachers


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
