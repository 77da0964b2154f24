"""What the constructor of TbpttPPO takes."""

from dataclasses import dataclass

from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.update.arguments import RunnerArguments
from rsl_tbptt.compat.versions import MLPModel


@dataclass
class PpoArguments(RunnerArguments, PpoOptions):
    """The models and the storage first, everything else by name."""

    actor: MLPModel
    """Policy with a distribution."""

    critic: MLPModel
    """Value function."""

    storage: RolloutStorage
    """rsl_rl's storage of the rollout."""
