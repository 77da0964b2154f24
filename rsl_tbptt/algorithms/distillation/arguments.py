"""What the constructor of TbpttDistillation takes."""

from dataclasses import dataclass

from rsl_rl.storage import RolloutStorage

from rsl_tbptt.algorithms.distillation.options import DistillationOptions
from rsl_tbptt.algorithms.update.arguments import RunnerArguments
from rsl_tbptt.compat.versions import MLPModel


@dataclass
class DistillationArguments(RunnerArguments, DistillationOptions):
    """The models and the storage first, everything else by name."""

    student: MLPModel
    """Model to train."""

    teacher: MLPModel
    """Model to imitate."""

    storage: RolloutStorage
    """rsl_rl's storage of the rollout."""
