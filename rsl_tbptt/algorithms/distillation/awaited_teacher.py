"""The teacher of a distillation before any checkpoint brought it."""

from collections.abc import Callable
from typing import Any

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
