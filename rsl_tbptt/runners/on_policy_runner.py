"""rsl_rl's on-policy runner with safe checkpoints."""

from rsl_rl.runners import OnPolicyRunner

from rsl_tbptt.runners.safe_checkpoints import SafeCheckpoints


class TbpttOnPolicyRunner(SafeCheckpoints, OnPolicyRunner):
    """An OnPolicyRunner whose checkpoints survive; see :class:`SafeCheckpoints`.

    ``TbpttPPO`` does its whole work under the stock runner too; Isaac Lab accepts only that one.
    """
