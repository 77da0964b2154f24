"""Isaac Lab 2.3 without Isaac Sim: its real config classes and vec-env wrapper, and stubbed envs.

The wheel of Isaac Lab 2.3 contains its packages as sources that its launcher puts on the path, and
``isaaclab.envs`` starts the simulator. Import this before anything of Isaac Lab.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


class DirectRLEnv:
    """Stands in for the base class of simulated environments that the wrapper requires."""


class ManagerBasedRLEnv:
    """Stands in for the other base class."""


def _install() -> None:
    spec = importlib.util.find_spec("isaaclab")
    assert spec is not None, "Isaac Lab 2.3 is missing"
    assert spec.origin is not None
    sources = Path(spec.origin).parent / "source"
    sys.path[:0] = [str(sources / name) for name in ("isaaclab", "isaaclab_rl")]
    envs = ModuleType("isaaclab.envs")
    envs.DirectRLEnv, envs.ManagerBasedRLEnv = DirectRLEnv, ManagerBasedRLEnv
    sys.modules["isaaclab.envs"] = envs


_install()
