"""Differences between releases of rsl_rl, and the releases that this package supports.

rsl_rl has two eras of configs and classes: one ``policy`` object (3.1.2, which Isaac Lab 2.3 pins),
and separate models, ``student`` and ``teacher`` or ``actor`` and ``critic`` (5.0.1 to 5.5). Each
part of this package supports one of them or both, and checks that when it is imported.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec

from rsl_tbptt.installation import installed_version

POLICY_ERA, MODELS_ERA = "policy", "models"


def rsl_rl_era() -> str:
    """Return the era of the installed rsl_rl.

    Returns:
        ``"policy"`` for 3.1.2, ``"models"`` for 5.0.1 to 5.5.

    Raises:
        ImportError: If rsl_rl is missing, another release, or a fork under another name.
    """
    installed, found = installed_version("rsl-rl-lib"), find_spec("rsl_rl")
    if installed is None and found is not None:
        raise ImportError(
            f"rsl_rl at {found.origin} is no rsl-rl-lib, expected 3.1.2 or 5.0.1 to 5.5: forks of"
            " another name are not supported. Use another environment, since rsl-rl-lib would be"
            " installed into the same folder."
        )
    release = tuple(int(number) for number in re.findall(r"\d+", installed or "")[:3])
    if release == (3, 1, 2):
        return POLICY_ERA
    if (5, 0, 1) <= release < (5, 6):
        return MODELS_ERA
    raise ImportError(
        f"rsl-rl-lib is {installed or 'not installed'}, expected 3.1.2 or 5.0.1 to 5.5: install one"
        " of these, for example with pip install 'rsl-rl-lib==5.5.1' (Isaac Lab 3.0 pins 5.5.1,"
        " mjlab 1.6 5.4.2, Isaac Lab 2.3 3.1.2)."
    )


_NEEDED = {
    MODELS_ERA: (
        "5.0.1 to 5.5",
        "with 3.1.2 import rsl_tbptt.integrations.rsl_rl_v3, which registers TbpttDistillation and"
        " TbpttPPO for it.",
    ),
    POLICY_ERA: (
        "3.1.2",
        'with 5.0.1 to 5.5 name the class itself, class_name="rsl_tbptt.algorithms:TbpttPPO".',
    ),
}


def require_era(era: str, needed_by: str) -> None:
    """Raise an error if the other era of rsl_rl is installed.

    Args:
        era: The required era.
        needed_by: The part that requires it, for the message.

    Raises:
        ImportError: If rsl_rl is missing or of the other era.
    """
    if rsl_rl_era() != era:
        releases, fix = _NEEDED[era]
        raise ImportError(
            f"rsl-rl-lib is {version('rsl-rl-lib')}, expected {releases} for {needed_by}: {fix}"
        )
