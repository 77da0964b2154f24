"""TbpttDistillation and TbpttPPO for rsl_rl 3.1.2, the release that Isaac Lab 2.3 pins.

Importing this registers both where that release's runners look class names up, so that
``class_name = "TbpttDistillation"`` and ``"TbpttPPO"`` work in stock scripts. They are the
algorithms of :mod:`rsl_tbptt.algorithms`, given the networks of one ``policy`` object::

    runner --policy--> TbpttDistillation, TbpttPPO (here)     takes the policy apart into models
                         |
                       TbpttDistillation, TbpttPPO (algorithms)         the update, unchanged
                         |
                       DistillationOfModels, PpoOfModels (here)  puts the models back together
                         |
                       Distillation, PPO (rsl_rl 3.1.2)
"""

from rsl_tbptt.compat.supported import require_policy_era

require_policy_era("rsl_tbptt.integrations.rsl_rl_v3")

from rsl_rl.runners import distillation_runner, on_policy_runner  # noqa: E402

from rsl_tbptt.compat.rsl_rl3.distillation import TbpttDistillation  # noqa: E402
from rsl_tbptt.compat.rsl_rl3.ppo import TbpttPPO  # noqa: E402

__all__ = ["TbpttDistillation", "TbpttPPO"]

distillation_runner.TbpttDistillation = TbpttDistillation  # type: ignore[attr-defined]
on_policy_runner.TbpttPPO = TbpttPPO  # type: ignore[attr-defined]
