"""rsl_rl's distillation runner with safe checkpoints."""

from rsl_rl.runners import DistillationRunner

from rsl_tbptt.runners.safe_checkpoints import SafeCheckpoints


class TbpttDistillationRunner(SafeCheckpoints, DistillationRunner):
    """A DistillationRunner whose checkpoints survive; see :class:`SafeCheckpoints`.

    ``TbpttDistillation`` does its whole work under the stock runner too; Isaac Lab accepts only
    that one.
    """
