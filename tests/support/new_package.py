"""Packages of ``rsl-tbptt new``, and the commands of their README."""

import re
import string
from pathlib import Path


def readme_commands(package: Path) -> list[str]:
    """Return the commands without comments, each on one line, with the README's variables."""
    (block,) = re.findall(r"```bash\n(.*?)```", (package / "README.md").read_text(), re.DOTALL)
    found, variables = [], {}
    for line in filter(None, block.replace("\\\n", " ").splitlines()):
        if assignment := re.fullmatch(r'(\w+)="(.*)"', line):
            variables[assignment[1]] = assignment[2]
        else:
            found.append(string.Template(line.split("  # ")[0]).safe_substitute(variables))
    return found
