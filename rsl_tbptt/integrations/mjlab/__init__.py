"""mjlab 1.6: config classes for the algorithms of this package, and the runners that mjlab lacks.

::

    config.py    what a task's ``rl_cfg`` is made of
    runner.py    what a task's ``runner_cls`` is
"""

from rsl_tbptt.supported_rsl_rl import require_models_era

require_models_era("rsl_tbptt.integrations.mjlab")
try:
    # First of all: at its start mjlab loads this package's tasks, which import the modules below.
    import mjlab  # noqa: F401  # pyright: ignore[reportMissingImports]

    from rsl_tbptt.integrations.mjlab.config import (
        RslRlDistillationRunnerCfg,
        TbpttDistillationAlgorithmCfg,
        TbpttPpoAlgorithmCfg,
    )
    from rsl_tbptt.integrations.mjlab.runner import MjlabDistillationRunner, MjlabRecurrentRunner
except ImportError as error:
    raise ImportError(
        "rsl_tbptt.integrations.mjlab needs mjlab 1.6, and importing it failed: "
        f"{error}. Install it with: pip install 'rsl-tbptt[mjlab]'."
    ) from error

__all__ = [
    "MjlabDistillationRunner",
    "MjlabRecurrentRunner",
    "RslRlDistillationRunnerCfg",
    "TbpttDistillationAlgorithmCfg",
    "TbpttPpoAlgorithmCfg",
]
