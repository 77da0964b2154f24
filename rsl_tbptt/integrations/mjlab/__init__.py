"""mjlab: config classes for the algorithms of this package, and the runners that mjlab lacks.

::

    config.py    what a task's ``rl_cfg`` is made of
    runner.py    what a task's ``runner_cls`` is
"""

import importlib
import warnings
from typing import Any

from rsl_tbptt.compat.supported import require_models_era

__all__ = [
    "TbpttCnnRnnModelCfg",
    "TbpttDistillationAlgorithmCfg",
    "TbpttDistillationRunnerCfg",
    "TbpttMjlabDistillationRunner",
    "TbpttMjlabRecurrentRunner",
    "TbpttPpoAlgorithmCfg",
    "TbpttTeacherCfg",
    "TbpttTeachersCfg",
]

RENAMED = {
    "MjlabDistillationRunner": "TbpttMjlabDistillationRunner",
    "MjlabRecurrentRunner": "TbpttMjlabRecurrentRunner",
    "RslRlDistillationRunnerCfg": "TbpttDistillationRunnerCfg",
}
"""Names of release 0.1, which mjlab is about to give to classes of its own, and today's."""


def __getattr__(name: str) -> Any:
    """Return a class that is not here yet, or that had another name.

    It is not here yet where ``import mjlab`` below loads a package of tasks that imports from here.

    Raises:
        AttributeError: If there is no such public name.
    """
    new_name = RENAMED.get(name, name)
    if new_name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if new_name != name:
        warnings.warn(
            f"{name} is now {new_name}: mjlab is about to have a class of the old name. The next"
            " release drops it.",
            DeprecationWarning,
            stacklevel=2,
        )
    from rsl_tbptt.integrations.mjlab import config, runner

    found = getattr(runner if new_name.endswith("Runner") else config, new_name)
    globals()[name] = found  # so that it is asked for, and warned of, once
    return found


require_models_era("rsl_tbptt.integrations.mjlab")
try:
    # First of all: at its start mjlab loads packages of tasks, which import the modules below.
    importlib.import_module("mjlab")

    from rsl_tbptt.integrations.mjlab.config import (
        TbpttCnnRnnModelCfg,
        TbpttDistillationAlgorithmCfg,
        TbpttDistillationRunnerCfg,
        TbpttPpoAlgorithmCfg,
        TbpttTeacherCfg,
        TbpttTeachersCfg,
    )
    from rsl_tbptt.integrations.mjlab.runner import (
        TbpttMjlabDistillationRunner,
        TbpttMjlabRecurrentRunner,
    )
except ImportError as error:
    from rsl_tbptt.tools.doctor import install

    raise ImportError(
        "rsl_tbptt.integrations.mjlab needs mjlab 1.6 or 1.7, and importing it failed: "
        f"{error}. Install it with: {install('mjlab')}."
    ) from error
