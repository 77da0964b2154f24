"""docs/howto/mjlab.md as a reader follows it, then the trainings of studies/mjlab.md and go1.md.

From the first page: the package that it copies and its commands, in the page's order.
"""

import shutil
from pathlib import Path

from support import pages
from support.pages import Command

DOCS = Path(__file__).parents[2] / "docs"
GO1 = (DOCS / "studies" / "go1.md").read_text().partition("### Train it\n")[2].partition("### ")[0]
PAGE = (DOCS / "howto" / "mjlab.md").read_text() + (DOCS / "studies" / "mjlab.md").read_text() + GO1

INSTALLATIONS = {"this package: Python 3.10 to 3.13, rsl_rl 5.4.2", "your package"}
"""Comments of commands that change an environment; :func:`build_package` replaces one of them."""
ON_TWO_GPUS = "one process on each of two GPUs"
ON_A_GPU = ", on a GPU"
"""End of the comment of a command that leaves the choice of the GPU to mjlab."""

PLACEHOLDERS = {
    "STUDENT": "logs/rsl_rl/my_task/*_student/model_1.pt",
    "TEACHER": "logs/rsl_rl/tbptt_cartpole_occluded/*_teacher/model_1.pt",
}
"""Placeholders of the page for a checkpoint, and the path where it is."""
NUM_ENVS = {"train": "--env.scene.num-envs", "play": "--num-envs"}
SMALL = {"train": ("8", "--agent.max-iterations", "2"), "play": ("4",)}
"""Options that make a command short, such as few environments."""


def commands() -> dict[str, Command]:
    """Return the pages' commands by their comments."""
    return pages.commands(PAGE)


def smaller(command: Command, *extra: str) -> Command:
    """Return a command with its options replaced by ones that make it short."""
    words = [PLACEHOLDERS.get(word, word) for word in command.words]
    small = [NUM_ENVS[words[0]], *SMALL[words[0]], *extra]
    for option in small[::2]:
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    return Command([*words, *small], command.environment)


def runs() -> dict[str, Command]:
    """Return the commands that run here: shorter, and without a GPU."""
    return {
        comment: smaller(command, *(("--gpu-ids", "None") if comment.endswith(ON_A_GPU) else ()))
        for comment, command in commands().items()
        if comment not in {*INSTALLATIONS, ON_TWO_GPUS}
    }


def build_package(folder: Path) -> Path:
    """Build the wheel of the package that the page copies, from which it can be imported."""
    shutil.copytree(DOCS.parent / "examples" / "task_mjlab", folder)
    return pages.build_wheel(folder)
