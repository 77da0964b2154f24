"""Where releases of rsl_rl differ, and which of them this package runs with.

rsl_rl has two eras of configs and classes: one ``policy`` object (3.1.2, which Isaac Lab 2.3 pins),
and separate models, ``student`` and ``teacher`` or ``actor`` and ``critic`` (5.0.1 to 5.5). Each
part of this package belongs to one of them or serves both; it is checked when it is imported.
"""

from __future__ import annotations

import re
from importlib.metadata import version

SUPPORTED = "3.1.2 or 5.0.1 to 5.5"

POLICY_ERA, MODELS_ERA = "policy", "models"


def rsl_rl_era() -> str:
    """Return the era of the installed rsl_rl.

    Returns:
        ``"policy"`` for 3.1.2, ``"models"`` for 5.0.1 to 5.5.

    Raises:
        ImportError: If rsl_rl is missing or another release.
    """
    installed = version("rsl-rl-lib")
    release = tuple(int(number) for number in re.findall(r"\d+", installed)[:3])
    if release == (3, 1, 2):
        return POLICY_ERA
    if (5, 0, 1) <= release < (5, 6):
        return MODELS_ERA
    raise ImportError(
        f"rsl-rl-lib is {installed}, expected {SUPPORTED}: install one of these, for example with "
        "pip install 'rsl-rl-lib==5.5.1' (Isaac Lab 3.0 pins 5.5.1, mjlab 1.6 5.4.2, Isaac Lab 2.3 "
        "3.1.2)."
    )


def require_models_era(needed_by: str) -> None:
    """Refuse the ``policy`` era where something needs separate models.

    Args:
        needed_by: What needs them, as named in the error.

    Raises:
        ImportError: If rsl_rl is missing or none of 5.0.1 to 5.5.
    """
    if rsl_rl_era() != MODELS_ERA:
        raise ImportError(
            f"rsl-rl-lib is {version('rsl-rl-lib')}, expected 5.0.1 to 5.5 for {needed_by}: "
            "with 3.1.2 import rsl_tbptt.integrations.rsl_rl_v3, which registers TbpttDistillation "
            "and TbpttPPO for it."
        )


def require_policy_era(needed_by: str) -> None:
    """Refuse rsl_rl 5 where something needs the ``policy`` object of 3.1.2.

    Args:
        needed_by: What needs it, as named in the error.

    Raises:
        ImportError: If rsl_rl is missing or another release than 3.1.2.
    """
    if rsl_rl_era() != POLICY_ERA:
        raise ImportError(
            f"rsl-rl-lib is {version('rsl-rl-lib')}, expected 3.1.2 for {needed_by}: with 5.0.1 to "
            'this release name the class itself, class_name="rsl_tbptt.algorithms:TbpttPPO".'
        )
