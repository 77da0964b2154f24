"""TbpttDistillation and TbpttPPO for rsl_rl 3.1.2, the release that Isaac Lab 2.3 pins.

Importing this registers both where that release's runners look class names up, so that
``class_name = "TbpttDistillation"`` and ``"TbpttPPO"`` work in stock scripts. They are the
algorithms of :mod:`rsl_tbptt.algorithms`, given the networks of one ``policy`` object::

    runner --policy--> TbpttDistillation, TbpttPPO (compat.rsl_rl3.runner_algorithms)
                         | take the policy apart into models, rename the storage
                       TbpttDistillation, TbpttPPO (algorithms)           the update, unchanged
                         |
                       Distillation, PPO (compat.rsl_rl3.algorithms)      rsl_rl 3.1.2's, of models
"""

from rsl_tbptt.compat.supported import require_policy_era

require_policy_era("rsl_tbptt.integrations.rsl_rl_v3")

from rsl_rl.runners import distillation_runner, on_policy_runner  # noqa: E402

from rsl_tbptt.compat.rsl_rl3.runner_algorithms import (  # noqa: E402
    TbpttDistillation,
    TbpttPPO,
)

__all__ = ["TbpttDistillation", "TbpttPPO"]

# By name, as the runners' type has no such attribute.
setattr(distillation_runner, TbpttDistillation.__name__, TbpttDistillation)
setattr(on_policy_runner, TbpttPPO.__name__, TbpttPPO)
