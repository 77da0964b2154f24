"""Shared code around the updates of both algorithms: checks, metrics, saves and normalisers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.health import HealthLog
from rsl_tbptt.algorithms.optimizers import set_rate, use_fused_kernels
from rsl_tbptt.algorithms.options import Options, positive
from rsl_tbptt.algorithms.step_checks import StepChecks
from rsl_tbptt.algorithms.transaction import Transaction
from rsl_tbptt.checkpoints.describing import describe_all
from rsl_tbptt.checkpoints.robot import describe_robot
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.signals import EmergencySave


class TbpttAlgorithm:
    """Base class of both algorithms, listed before rsl_rl's class: the work around updates."""

    options: Any
    storage: RolloutStorage
    optimizer: torch.optim.Optimizer
    transaction: Transaction
    _heads: AuxiliaryHeads

    model_configs: Mapping[str, Any] | None = None
    """The models' configs from the runner's config, for checkpoints."""

    robot: Mapping[str, Any] | None = None
    """Description of the robot by :func:`describe_robot`, for checkpoints."""

    _started = False
    """Whether training has started; playing a policy needs fewer checks."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the optimiser, also of auxiliary heads; set it between two updates."""
        return self.optimizer.param_groups[0]["lr"]

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        positive()("learning_rate", rate)
        updates = getattr(self.options, "learning_rate_updates", None)
        if self.options.are_in_use() and updates is not None:
            raise AttributeError(
                f"learning_rate is {rate}, expected {self.learning_rate} with learning_rate_updates"
                f" {updates}, which sets it in each update: set that to None in the config."
            )
        set_rate(self.optimizer, rate)

    def _prepare_surroundings(self) -> None:
        """Set up the work around updates; rsl_rl's constructor has to run before."""
        options: Options = self.options
        algorithm: Any = self
        use_fused_kernels(self.optimizer)
        self._ranks = Ranks(together=algorithm.is_multi_gpu)
        self.emergency_save = EmergencySave(options.safe_checkpoint_interval, self, self._ranks)
        self.step_checks = StepChecks(self.storage)
        self.metrics: dict[str, float] = {}
        """Metrics of the last update."""
        self.health_log: HealthLog | None = None  # your own loop has no logger

    def _join_runner(
        self, obs: TensorDict, env: VecEnv, cfg: dict[str, Any], configs: Mapping[str, Any]
    ) -> None:
        """Join a runner: write next to its logs, use its logger, and check for NaN in its place.

        Args:
            obs: Observations of the environment.
            env: The runner's environment.
            cfg: The runner's config; ``check_for_nan`` is set to False in it.
            configs: The models' configs from it, see ``model_configs``.
        """
        self.model_configs, self.robot = configs, describe_robot(env, obs)
        self.step_checks.take_over_nan_check(self.options.non_finite, cfg)
        self.emergency_save.write_beside_logs_of(env)
        self.health_log = HealthLog()

    def broadcast_parameters(self) -> None:
        """Copy the first process's models and auxiliary heads to all processes."""
        rsl_rl: Any = super()
        rsl_rl.broadcast_parameters()
        self._heads.broadcast()

    def train_mode(self) -> None:
        """Set the models to training and drop a rollout that an error or Ctrl+C interrupted.

        A model that has acted in another number of environments since starts with an empty memory.
        """
        rsl_rl: Any = super()
        rsl_rl.train_mode()
        self.transaction.drop_rollout()
        for model in self.transaction.stateful_models():
            state = as_tensors(model.get_hidden_state())
            if state and state[0].shape[1] != self.storage.num_envs:
                model.reset()
        if self.health_log is not None:
            self.health_log.start()
        self.emergency_save.start()

    def _read_groups(self) -> set[str]:
        """Return the observation groups that anything reads."""
        raise NotImplementedError

    def _begin_step(self, obs: TensorDict) -> TensorDict:
        """Return checked observations that nobody changes; the logger has read the last step."""
        if self.health_log is not None:
            self.health_log.leave()
        if self.storage.step == 0:  # not earlier: a teacher may be set at any time
            self.step_checks.read_groups = self._read_groups()
        return self.step_checks.observations(obs)

    def _store_step(self, transition: RolloutStorage.Transition, extras: dict[str, Any]) -> None:
        """Store a step; health metrics join the entries of ``extras`` for the logger."""
        self.storage.add_transition(transition)
        transition.clear()
        if self.health_log is not None:
            self.health_log.join(extras, self.storage.step == self.storage.num_transitions_per_env)

    def _zero_grad(self) -> None:
        """Drop the gradients of models and auxiliary heads."""
        self.optimizer.zero_grad()
        self._heads.zero_grad()

    def _described(self, models: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checkpoint's description of models, robot and auxiliary heads, plain values."""
        described = describe_all(models, self.storage.observations, self.model_configs)
        own: dict[str, Any] = {"models": described}
        if self.robot:
            own["robot"] = self.robot
        if self.options.auxiliary:
            own["auxiliary"] = self._heads.state_dict()
        return own

    def _advance(self, metrics: dict[str, float]) -> dict[str, float]:
        """Advance the schedules after an update with these metrics; return those to log."""
        raise NotImplementedError

    def _conclude(self) -> dict[str, float]:
        """End an iteration; return the metrics to log."""
        self.emergency_save.conclude_iteration()
        self.metrics = self.transaction.logged
        return self.health_log.losses_of(self.metrics) if self.health_log else self.metrics
