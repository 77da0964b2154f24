"""Shared code of both algorithms: recorded steps, extensions, checks, metrics and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.extensions.curricula import Curricula
from rsl_tbptt.algorithms.health import obs_scales
from rsl_tbptt.algorithms.optimizers import common_rate, is_fused, set_rate, use_fused_kernels
from rsl_tbptt.algorithms.option_checks import parse_fields, positive
from rsl_tbptt.algorithms.options import CHANGEABLE, Options, check_runner_keys
from rsl_tbptt.algorithms.replay import Replay, observed_groups
from rsl_tbptt.algorithms.step_checks import StepChecks, tensor_groups
from rsl_tbptt.algorithms.transaction import Transaction
from rsl_tbptt.checkpoints.describing import describe_all, model_configs
from rsl_tbptt.checkpoints.robot import describe_robot
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState, as_tensors
from rsl_tbptt.core.recording import Recorder
from rsl_tbptt.core.rollout import Rollout
from rsl_tbptt.models.protocol import check_rnn_types


class Algorithm:
    """Base class of both algorithms, listed before rsl_rl's class: the work around their steps."""

    options: Any
    storage: RolloutStorage
    optimizer: torch.optim.Optimizer
    transaction: Transaction

    extensions: Sequence[Extension] = ()
    """Parts that are called at each stage, in this order."""

    parameters: Sequence[nn.Parameter]
    """All parameters that a step trains, each once."""

    model_configs: Mapping[str, Any] | None = None
    """The models' configs from the runner's config, for checkpoints."""

    robot: Mapping[str, Any] | None = None
    """Description of the robot by :func:`describe_robot`, for checkpoints."""

    checkpoint_path: str | None = None
    """Path of the checkpoint that ``load`` is given, if the runner or its config names it."""

    _is_built = False
    """Whether the constructor has run, after which options in ``CHANGEABLE`` alone may change."""

    _started = False
    """Whether training has started; playing a policy needs fewer checks."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. One of ``CHANGEABLE`` acts from the next update on.

        Raises:
            ValueError: If the value of the option is not valid.
            AttributeError: If the algorithm was built for the old value of the option.
        """
        own = vars(self.options) if self._is_built else {}
        if name in CHANGEABLE and name in own:
            parse_fields(type(self.options), {**own, name: value}, type(self).__name__)
            setattr(self.options, name, value)
        elif name in own.keys() - {"learning_rate", "optimizer"}:
            change = ", ".join(each for each in (*CHANGEABLE, "learning_rate") if each in own)
            raise AttributeError(
                f"{name} is {value!r}, expected {own[name]!r}, for which the algorithm was built:"
                " set it in the config and continue from a checkpoint. During a training you can"
                f" change {change}."
            )
        super().__setattr__(name, value)

    @property
    def last_update(self) -> int | None:
        """Number of updates at which the learning rate has fallen; None if it is kept."""
        return None

    @property
    def learning_rate(self) -> float:
        """Learning rate of the optimiser, also of auxiliary heads; set it between two updates."""
        return self.optimizer.param_groups[0]["lr"]

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        positive()("learning_rate", rate)
        if self._is_built and self.last_update is not None:
            raise AttributeError(
                f"learning_rate is {rate}, expected {self.learning_rate} with learning_rate_updates"
                f" {self.options.learning_rate_updates!r}, which sets it in each update: set that"
                " to None in the config."
            )
        set_rate(self.optimizer, rate)

    def _prepare_surroundings(self) -> None:
        """Set up the work around updates; rsl_rl's constructor has to run before."""
        options: Options = self.options
        algorithm: Any = self
        use_fused_kernels(self.optimizer)
        self._ranks = Ranks(together=algorithm.is_multi_gpu)
        self.step_checks = StepChecks(self.storage)
        self.curricula = Curricula(restarts=options.restart_curriculum)
        """The environment's step counter."""
        self.metrics: dict[str, float] = {}
        """Metrics of the last update."""

    def _prepare_recording(self, *replays: Replay) -> None:
        """Set up the recording of steps, which train the models of these replays."""
        device, optimizers = self.storage.dones.device, self._optimizers()
        self.rate = torch.full((), self.learning_rate, dtype=torch.float64, device=device)
        """Learning rate of a step, on the device. Shape: ()."""
        trained = chain.from_iterable(each.parameters for each in (*replays, *self.extensions))
        self.parameters = [*dict.fromkeys(trained)]  # those of a shared encoder once
        reasons = [None if self.options.record_steps else "record_steps is False"]
        reasons += [each.unrecordable_reason() for each in replays]
        if not all(map(is_fused, optimizers)):
            reasons.append("the optimiser has no fused kernel, or models share parameters")
        self.recorder = Recorder(device, refused=next(filter(None, reasons), None))
        """Records optimiser steps on a CUDA device."""
        self._places: dict[str, torch.Tensor] = {}

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Return all optimisers."""
        own = chain.from_iterable(extension.optimizers for extension in self.extensions)
        return [self.optimizer, *own]

    def _place(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor at the address where recorded steps read what has this name."""
        kept = self._places.get(name)
        if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
            is_fit = tensor.is_contiguous() and not tensor.is_inference()
            kept = self._places[name] = (
                tensor if is_fit else tensor.clone(memory_format=torch.contiguous_format)
            )
        elif kept.data_ptr() != tensor.data_ptr():
            kept.copy_(tensor)
        return kept

    def _placed_state(self, name: str, state: HiddenState) -> HiddenState:
        """Return a state where recorded steps read it."""
        if self.recorder.reason is not None:
            return state
        parts = enumerate(as_tensors(state))
        return hidden_state.from_tensors([self._place(f"{name}/{i}", part) for i, part in parts])

    def _placed(self, name: str, rollout: Rollout) -> Rollout:
        """Return a rollout whose tensors are where recorded steps read them."""
        if self.recorder.reason is not None:  # with frames, among others
            return rollout
        obs = {key: self._place(f"{name}/obs/{key}", each) for key, each in rollout.obs.items()}
        labels = {key: self._place(f"{name}/{key}", each) for key, each in rollout.labels.items()}
        weights = rollout.weights
        return Rollout(
            TensorDict(obs, rollout.obs.batch_size),
            labels,
            self._place(f"{name}/starts", rollout.episode_starts),
            None if weights is None else self._place(f"{name}/weights", weights),
        )

    def _begin_steps(self, *live: Any) -> None:
        """Set the learning rate of the first step; forget recordings if anything has changed.

        Args:
            *live: Trees of other tensors that steps read.

        Raises:
            ValueError: If groups of parameters have different learning rates.
        """
        self.rate.fill_(common_rate(self.optimizer))
        modules = self.transaction.modules
        values = [getattr(self.options, name, None) for name in CHANGEABLE]
        groups = [
            {**group, "lr": None if each is self.optimizer else group["lr"]}  # that one is a tensor
            for each in self._optimizers()
            for group in each.param_groups
        ]
        self.recorder.follow(
            [
                *(each for module in modules for each in (*module.parameters(), *module.buffers())),
                *(dict(state) for each in self._optimizers() for state in each.state.values()),
                *(part.training for module in modules for part in module.modules()),
                *(self._places, values, groups, self.rate, *live),
            ]
        )

    def _zero_grad(self) -> None:
        """Drop the gradients of everything that is trained."""
        for optimizer in self._optimizers():
            optimizer.zero_grad()

    def _set_gradients(self, gradients: Iterable[torch.Tensor | None]) -> None:
        """Set the gradients of ``parameters``."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def _sums_of_step(
        self, sums: Mapping[str, torch.Tensor], names: Sequence[str], health: Any
    ) -> tuple[torch.Tensor, Any, list[torch.Tensor | None]]:
        """Return the results of a step before its optimisers: sums (M,), health and gradients."""
        zero = torch.zeros_like(next(iter(sums.values())))
        reported = torch.stack([sums.get(name, zero) for name in names])
        return reported, health, [parameter.grad for parameter in self.parameters]

    def _shared_metrics(
        self, num_samples: int, health: Mapping[str, torch.Tensor], models: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Return the metrics of an update that both algorithms have. Shape: () each.

        Args:
            num_samples: Samples of the rollout, over all processes.
            health: Measurements of the update.
            models: Models by role, whose inputs are measured.
        """
        stored = self.storage
        measured = {**health, **obs_scales(models, stored.observations[0])}
        return {
            "done_rate": self._ranks.mean(stored.dones.float(), num_samples),
            **{k: v for each in self.extensions for k, v in each.metrics().items()},
            # Finite, so that no update is skipped for them.
            **{name: torch.nan_to_num(value) for name, value in measured.items()},
        }

    def _exchanged(
        self, sums: Any, health: Any, gradients: Sequence[torch.Tensor | None]
    ) -> tuple[Any, Any, Sequence[torch.Tensor | None]]:
        """Sum the results of a step before its optimisers over all ranks: sums and gradients."""
        self._set_gradients(gradients)
        # Summed, not averaged: the divisor already counts the samples of all ranks.
        self._ranks.sum_gradients(self.parameters, self.options.grad_reduce_bucket_mb)
        return self._ranks.sum_tensor(sums), health, gradients

    def _kept(self) -> list[Any]:
        """Return the objects whose attributes an update replaces."""
        return [self, *self.extensions]

    def stateful_models(self) -> dict[str, Any]:
        """Return all models with hidden states, by their roles in checkpoints."""
        raise NotImplementedError

    def _join_runner(
        self, obs: TensorDict, env: VecEnv, cfg: dict[str, Any], configs: Mapping[str, Any]
    ) -> None:
        """Join a runner: describe its robot, and check for NaN in its place.

        Args:
            obs: Observations of the environment.
            env: The runner's environment.
            cfg: The runner's config; ``check_for_nan`` is set to False in it. Isaac Lab puts its
                ``--checkpoint`` into "load_checkpoint".
            configs: The models' configs from it, see ``model_configs``.
        """
        self.model_configs, self.robot = configs, describe_robot(env, obs)
        self.step_checks.take_over_nan_check(self.options.non_finite, cfg)
        self.curricula.join(env)
        self.checkpoint_path = cfg.get("load_checkpoint")

    def broadcast_parameters(self) -> None:
        """Copy the first process's models and extensions to all processes."""
        rsl_rl: Any = super()
        rsl_rl.broadcast_parameters()
        for extension in self.extensions:
            extension.broadcast()

    def _read_by(self, models: Iterable[Any]) -> set[str]:
        """Return the observation groups that models and extensions read."""
        stored = self.storage.observations
        groups = {group for model in models for group in observed_groups(model, stored)}
        return groups.union(*(extension.observed_groups() for extension in self.extensions))

    def _read_groups(self) -> set[str]:
        """Return the observation groups that anything reads."""
        raise NotImplementedError

    def _start_training(self, check: Callable[[], None]) -> None:
        """Check what training needs and playing does not, before the first step.

        Args:
            check: Checks sizes on each rank.

        Raises:
            ValueError: If something is missing or does not fit.
        """
        if not self._started:
            for extension in self.extensions:
                extension.start_training()
            self._ranks.run_together(check)
            self._started = True

    def _begin_step(self, obs: TensorDict) -> TensorDict:
        """Return checked observations that nobody changes.

        A model that has acted in another number of environments starts with an empty memory, and a
        rollout that no update has taken, after an error or Ctrl+C, is dropped.
        """
        stored = self.storage
        for model in self.stateful_models().values():
            state = as_tensors(model.get_hidden_state())
            if state and state[0].shape[1] != stored.num_envs:
                model.reset()
        if stored.step == stored.num_transitions_per_env:
            self.transaction.drop_rollout()
        if stored.step == 0:  # not earlier: a teacher may be set at any time
            self.step_checks.read_groups = self._read_groups()
            for extension in self.extensions:
                extension.begin_rollout()
        return self.step_checks.observations(obs)

    def _described(self, models: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checkpoint's description of models, robot and extensions, plain values."""
        described = describe_all(models, self.storage.observations, self.model_configs)
        own: dict[str, Any] = {"models": described}
        if self.robot:
            own["robot"] = self.robot
        saved = {each.name: each.state_dict() for each in self.extensions if each.name}
        return own | {name: state for name, state in saved.items() if state}

    def _asked(
        self, own: Mapping[str, Any], wants: Mapping[str, Any]
    ) -> Iterator[tuple[Extension, Mapping[str, Any]]]:
        """Yield extensions that ``load_cfg`` asks for, with their entries of a checkpoint."""
        for extension in self.extensions:
            if extension.name and any(wants.get(part) for part in extension.loaded_with):
                yield extension, own.get(extension.name, {})

    def _load_extensions(self, own: Mapping[str, Any], wants: Mapping[str, Any]) -> None:
        """Load checked entries of extensions."""
        for extension, saved in self._asked(own, wants):
            extension.load_state_dict(saved, with_optimizer=bool(wants.get("optimizer")))

    def _check_extensions(self, own: Mapping[str, Any], wants: Mapping[str, Any]) -> None:
        """Check entries of extensions; nothing is changed.

        Raises:
            ValueError: If one does not fit.
        """
        for extension, saved in self._asked(own, wants):
            extension.check(saved)

    def _conclude(self) -> dict[str, float]:
        """End an iteration; return the metrics to log."""
        self.metrics = self.transaction.logged
        return self.metrics


def checked_config(obs: TensorDict, cfg: dict) -> tuple[TensorDict, Mapping[str, Any]]:
    """Check a runner's config.

    Args:
        obs: Observations of the environment, of any batch size.
        cfg: The config.

    Returns:
        The observation groups that are tensors, and the models' configs; see ``model_configs``.

    Raises:
        ValueError: If a key is mistyped, a model of rsl_rl's has another ``rnn_type`` than
            rsl_rl's, or a group in ``obs_groups`` is no tensor.
    """
    check_runner_keys(cfg)
    check_rnn_types(cfg)
    return tensor_groups(obs, cfg.get("obs_groups") or {}), model_configs(cfg)
