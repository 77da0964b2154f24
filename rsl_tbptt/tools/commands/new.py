"""The command ``rsl-tbptt new``: a small package of your own, made from a template.

The templates are the folders of ``new_task/``, one for each platform. They are packages that work
as they stand. Each uses the name :data:`PLACEHOLDER` for its package, its task and its logs.
"""

import importlib.util
import keyword
import re
from pathlib import Path

from rsl_tbptt.files import complete_folder
from rsl_tbptt.installation import installed_version
from rsl_tbptt.tools.commands.doctor import EXTRAS

TEMPLATES = Path(__file__).with_name("new_task")
PLACEHOLDER = "my_task"
FILES = ("pyproject.toml", "README.md", f"{PLACEHOLDER}/*.py")
"""Files of a template. Installing it in place leaves others, which are not copied."""


def new(name: str, platform: str, output: Path | None = None) -> Path:
    """Write a package that trains a teacher, its student, recurrent PPO, and PPO from the student.

    Args:
        name: Name of the package and of its task.
        platform: Whose template, one of :data:`rsl_tbptt.tools.platforms.PLATFORMS`.
        output: Folder to create. None takes the name, in the working directory.

    Returns:
        The folder.

    Raises:
        ValueError: If the name cannot be a package's or is another's, or the folder exists.
        OSError: If it cannot be written; then nothing of it is left.
    """
    if keyword.iskeyword(name) or not re.fullmatch(r"[a-zA-Z](\w*[a-zA-Z0-9])?", name, re.ASCII):
        raise ValueError(
            f"NAME is {name!r}, expected a Python identifier such as my_task: letters, digits and"
            " underscores, with a letter first and no underscore last. Python imports the package"
            " by this name."
        )
    # pip takes Torch and rsl_rl_lib for torch and rsl-rl-lib, as `installed_version` does.
    taken = name in EXTRAS or importlib.util.find_spec(name) or installed_version(name)
    if taken:
        raise ValueError(
            f"NAME is {name!r}, expected one that no package has: yours would take the place of"
            f" {name}. Choose another."
        )
    folder = Path(name) if output is None else output
    if folder.exists() or folder.is_symlink():
        raise ValueError(
            f"The output is {folder}, expected a folder that does not exist yet: nothing is"
            " overwritten. Name another one with --output."
        )
    template = TEMPLATES / platform
    with complete_folder(folder) as unfinished:
        for path in (found for pattern in FILES for found in template.glob(pattern)):
            target = unfinished / str(path.relative_to(template)).replace(PLACEHOLDER, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
            target.write_text(text, encoding="utf-8")
    return folder
