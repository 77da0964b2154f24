"""The teacher of a distillation before any checkpoint brought it."""

from collections.abc import Callable


class AwaitedTeacher:
    """Stands in ``teacher_loaded`` until a checkpoint brings the teacher.

    rsl_rl's runners ask ``if not teacher_loaded`` when training starts, and only then. So the
    file that ``teacher_checkpoint`` names is read when they ask: one who plays or resumes a student
    has loaded the teacher with it, and does not need the file. Where none is named, the refusal
    is ours, as rsl_rl's own names neither way to give one.
    """

    def __init__(self, path: str | None, load: Callable[[str], None]) -> None:
        """Keep the path of the teacher's file, or None, and what reads it."""
        self._path, self._load = path, load

    def read(self) -> None:
        """Load the teacher from its file, if one is named and was not read yet.

        Raises:
            ValueError: If the file is missing, damaged or does not fit.
        """
        if self._path is not None:
            self._load(self._path)
            self._path = None

    def forget(self) -> None:
        """Await nothing any more: a checkpoint brought the teacher."""
        self._path = None

    def __bool__(self) -> bool:
        """Answer the runner: load the teacher and return True.

        Raises:
            ValueError: If no file is named, or it is missing, damaged or does not fit.
        """
        if self._path is None:
            raise ValueError(
                "teacher_checkpoint is None and no checkpoint was loaded, expected one of the two:"
                " name the teacher's file with --checkpoint FILE (Isaac Lab) or as the option"
                " agent.algorithm.teacher_checkpoint=FILE, in mjlab"
                " --agent.algorithm.teacher-checkpoint FILE, or there its run with"
                " --agent.resume True --agent.load-run '.*_teacher'."
            )
        self.read()
        return True
