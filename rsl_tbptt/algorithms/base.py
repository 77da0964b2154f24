"""What both algorithms share: extensions, recorded steps, checks, metrics and checkpoints."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import distributed, nn

from rsl_tbptt.algorithms.curricula import Curricula
from rsl_tbptt.algorithms.env_step import StepChecks, check_types, tensor_groups
from rsl_tbptt.algorithms.find_nan import Inputs
from rsl_tbptt.algorithms.health import obs_scales
from rsl_tbptt.algorithms.optimizers import (
    common_rate,
    is_fused,
    set_rate,
    step_at,
    use_fused_kernels,
)
from rsl_tbptt.algorithms.options import CHANGEABLE, check_runner_keys
from rsl_tbptt.algorithms.replay import Objective, observed_groups
from rsl_tbptt.algorithms.undo import Transaction
from rsl_tbptt.checkpoints.describing import check_fits, describe_all, model_configs
from rsl_tbptt.checkpoints.reading import check_matches
from rsl_tbptt.checkpoints.robot import describe_robot
from rsl_tbptt.compat.checkpoints import modules_of_extension
from rsl_tbptt.compat.versions import import_function
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.recording import Recorder
from rsl_tbptt.core.rollout import ACTIONS, NEWEST, STD, WEIGHT
from rsl_tbptt.extensions import Extension, Term, parse_fields, positive, warn_all
from rsl_tbptt.models.protocol import check_rnn_types

Values = dict[str, torch.Tensor]
"""Tensors of shape () by name."""


_RESERVED = {ACTIONS, STD, NEWEST, "advantages", "log_prob", "old", "returns", "values"}
"""Names of the algorithms' own labels."""


class Algorithm:
    """Shared base of both algorithms. List it before rsl_rl's class."""

    options: Any
    storage: RolloutStorage
    optimizer: torch.optim.Optimizer

    extensions: Sequence[Extension]
    """This package's extensions, then those that the config names, called in this order."""

    objectives: Sequence[Objective]
    """What an optimiser step trains."""

    modules: Sequence[nn.Module]
    """Modules that an update changes, besides those of extensions."""

    policy_role: str
    """The policy's name in checkpoints, "actor" or "student"."""

    largest_mini_batch: int
    """Sequences in the largest mini-batch."""

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
        options = vars(self.options) if self._is_built else {}
        if name in CHANGEABLE and name in options:
            parse_fields(type(self.options), {**options, name: value}, type(self).__name__)
            setattr(self.options, name, value)
        elif name in options.keys() - {"learning_rate", "optimizer"}:
            change = ", ".join(n for n in (*CHANGEABLE, "learning_rate") if n in options)
            raise AttributeError(
                f"{name} is {value!r}, expected {options[name]!r}, for which the algorithm was"
                " built: set it in the config and continue from a checkpoint. During a training you"
                f" can change {change}."
            )
        super().__setattr__(name, value)

    @property
    def last_update(self) -> int | None:
        """Number of updates at which the learning rate has fallen; None if it is kept."""
        return None

    @property
    def learning_rate(self) -> float:
        """Learning rate of the optimiser, also of extensions; set it between two updates."""
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

    @property
    def dones(self) -> torch.Tensor:
        """The steps of the stored rollout with which an episode ended. Shape: (T, N), bool."""
        return self.storage.dones.squeeze(-1).bool()

    def build(self) -> None:
        """Make objectives, extensions and all that belongs to one algorithm alone."""
        raise NotImplementedError

    def set_up(self, models: Mapping[str, Any]) -> None:
        """Complete the constructor: rsl_rl's has run, and the options are set.

        Args:
            models: The models by role.
        """
        algorithm: Any = self
        check_types(models, self.storage.observations)
        self.ranks = Ranks(together=algorithm.is_multi_gpu)
        self.step_checks = StepChecks(self.storage)
        self.curricula = Curricula()
        """The environment's step counter."""
        self.metrics: dict[str, float] = {}
        """Metrics of the last update."""
        self.own_optimizers: dict[str, torch.optim.Optimizer] = {}
        """Optimisers of extensions by their names; they follow the algorithm's rate."""
        self.other_optimizers: list[torch.optim.Optimizer] = []
        """Optimisers with a rate of their own."""
        self.build()
        self.own_extensions = [*self._build_extensions()]
        """Those that the config names."""
        self.extensions = [*self.extensions, *self.own_extensions]
        for extension in self.extensions:
            modules = extension.modules.values()
            trained = [p for module in modules for p in module.parameters() if p.requires_grad]
            if trained:
                make: Any = type(self.optimizer)
                self.own_optimizers[extension.name] = make(trained, lr=self.learning_rate)
        for optimizer in self.optimizers:
            use_fused_kernels(optimizer)
        self._initial_states = {e.name: copy.deepcopy(e.state) for e in self.extensions}
        self._prepare_updates()
        self._is_built = True

    def _prepare_updates(self) -> None:
        """Set up the recording and the undoing of updates."""
        device = self.storage.dones.device
        self.rate = torch.full((), self.learning_rate, dtype=torch.float64, device=device)
        """Learning rate of a step, on the device. Shape: ()."""
        of_extensions = [m for extension in self.extensions for m in extension.modules.values()]
        trained = chain(*(objective.parameters for objective in self.objectives))
        others = (p for module in of_extensions for p in module.parameters() if p.requires_grad)
        self.parameters: Sequence[nn.Parameter] = [*dict.fromkeys((*trained, *others))]
        """All parameters that a step trains, each once."""
        reasons = [None if self.options.record_steps else "record_steps is False"]
        reasons += [objective.replay.unrecordable_reason() for objective in self.objectives]
        if not all(map(is_fused, self.optimizers)):
            reasons.append("the optimiser has no fused kernel, or models share parameters")
        reason = next(filter(None, reasons), None)
        self.recorder = Recorder(device, refused=reason)
        """Records optimiser steps on a CUDA device."""
        self.transaction = Transaction(
            self, [*self.modules, *of_extensions], self.largest_mini_batch
        )

    def _build_extensions(self) -> Iterator[Extension]:
        """Build the extensions that the option ``extensions`` names.

        Raises:
            ValueError: If one cannot be imported, or an option of it is unknown or not valid.
        """
        names = {extension.name for extension in self.extensions}
        for index, entry in enumerate(self.options.extensions or ()):
            place = f"extensions[{index}]"
            if not isinstance(entry, Mapping) or "class_name" not in entry:
                raise ValueError(
                    f"{place} is {entry!r}, expected a dictionary with 'class_name', such as"
                    " 'my_robot.losses:Smoothness', and the options of that class."
                )
            values = dict(entry)
            made: Any = import_function(f"{place}.class_name", values.pop("class_name"), ())
            if not (isinstance(made, type) and issubclass(made, Extension)):
                raise ValueError(
                    f"{place}.class_name is {made!r}, expected a subclass of"
                    " rsl_tbptt.extensions.Extension."
                )
            if made.name in names:
                raise ValueError(
                    f"{place} has the name '{made.name}', which another extension has: checkpoints"
                    " know extensions by their names. Give its class another 'name'."
                )
            names.add(made.name)
            options = parse_fields(made.Options, values, made.__name__, prefix=f"{place}.")
            warn_all(options.check_together())
            with torch.random.fork_rng(devices=[]):  # other random numbers stay as they are
                extension = made(options, self)
                for module in extension.modules.values():
                    module.to(self.storage.dones.device)
            if taken := extension.state.keys() & {"modules", "optimizer_state_dict", "heads"}:
                raise ValueError(
                    f"{place} has a state named {sorted(taken)}, expected other names, since"
                    " checkpoints have others of these beside it."
                )
            yield extension

    @property
    def loss_names(self) -> set[str]:
        """Names of the metrics that are losses."""
        return set().union(*(objective.names for objective in self.objectives))

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """All optimisers."""
        return [self.optimizer, *self.own_optimizers.values(), *self.other_optimizers]

    def change_outputs(self, policy: Any, samples: Any) -> None:
        """Let extensions change the outputs of the policy's MLP; see ``Extension.outputs``."""
        for extension in self.extensions:
            policy.output = extension.outputs(policy, samples)

    def losses_of_extensions(self, policy: Any, samples: Any) -> Iterator[Term]:
        """Yield the terms that extensions add to the policy's loss; see ``Extension.losses``."""
        for extension in self.extensions:
            yield from extension.losses(policy, samples)

    def labels_of_extensions(self) -> dict[str, Any]:
        """Return the labels of extensions for the stored rollout; weights are multiplied.

        Raises:
            ValueError: If two labels have one name.
        """
        labels: dict[str, Any] = {}
        for extension in self.extensions:
            for name, label in extension.labels().items():
                if name in _RESERVED or (name in labels and name != WEIGHT):
                    raise ValueError(
                        f"The label '{name}' of {extension.name} is taken, expected another name."
                    )
                labels[name] = labels[name] * label if name in labels else label
        return labels

    def begin_steps(self, *read: Any) -> None:
        """Set the learning rate of the first step; forget recordings if anything has changed.

        Args:
            *read: Trees of other tensors and numbers that steps read.

        Raises:
            ValueError: If groups of parameters have different learning rates.
        """
        self.rate.fill_(common_rate(self.optimizer))
        for parameter in self.parameters:
            if not parameter.requires_grad:
                parameter.grad = None  # a gradient of zeros would let an optimiser move it
        for extension in self.own_extensions:
            extension.state = self.recorder.place(f"state of {extension.name}", extension.state)
        options = [getattr(self.options, name, None) for name in CHANGEABLE]
        rates = [group["lr"] for other in self.other_optimizers for group in other.param_groups]
        stored, models = self.storage, self.stateful_models().values()
        inputs = stored.observations, [[*model.buffers()] for model in models]
        others = [options, rates, self.rate, inputs, *read]
        self.recorder.follow(self.transaction.modules, self.optimizers, others)

    @contextlib.contextmanager
    def new_gradients(self) -> Iterator[None]:
        """Replace all gradients by those that are computed inside.

        If steps are recorded, the new ones are copied into the old tensors, which other steps read:
        one launch, where adding to zeros would take one for each parameter.
        """
        places = {p: p.grad for p in self.parameters if p.grad is not None}
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        yield
        if self.recorder.reason is None and places:
            new = [torch.zeros_like(p) if p.grad is None else p.grad for p in places]
            torch._foreach_copy_([*places.values()], new)
            for parameter, place in places.items():
                parameter.grad = place

    def exchange(self, sums: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Sum the gradients and the results of a step over all ranks; return these sums.

        They are summed, not averaged: divisors count the samples of all ranks.
        """
        self.ranks.sum_gradients(self.parameters, self.options.grad_reduce_bucket_mb)
        return self.ranks.sum_each(sums)

    def step_optimizers(self) -> None:
        """Step all optimisers; the gradient of each extension is clipped by itself."""
        step_at(self.optimizer, self.rate)
        for optimizer in self.own_optimizers.values():
            parameters = optimizer.param_groups[0]["params"]
            nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm or math.inf)
            step_at(optimizer, self.rate)
        for optimizer in self.other_optimizers:
            step_at(optimizer, None)

    def measure_health(self, models: Mapping[str, Any], others: Values) -> Values:
        """Return measurements of models' inputs and others, () each.

        Args:
            models: Models by role; None has no inputs.
            others: Other measurements.
        """
        measured = {**others, **obs_scales(models, self.storage.observations[0])}
        # Finite, so that no update is skipped for them.
        return {name: torch.nan_to_num(value) for name, value in measured.items()}

    def shared_metrics(self, num_samples: int) -> Values:
        """Return the metrics of an update that both algorithms have. Shape: () each.

        Args:
            num_samples: Samples of the rollout, over all processes.
        """
        return {
            "done_rate": self.ranks.mean(self.dones.float(), num_samples),
            **{k: v for extension in self.extensions for k, v in extension.metrics().items()},
        }

    def kept_objects(self) -> list[Any]:
        """Return the objects whose attributes an update replaces."""
        return [self]

    def stateful_models(self) -> dict[str, Any]:
        """Return all models with hidden states, by their roles in checkpoints."""
        raise NotImplementedError

    def running_state(self) -> dict[str, Any]:
        """Return values that only the continuation of running episodes needs, by name."""
        return {}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore values of ``running_state``: the episodes continue."""

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
        """Copy the first process's models, averages and extensions to all processes."""
        rsl_rl: Any = super()
        rsl_rl.broadcast_parameters()
        for module in self.transaction.modules:
            for tensor in (*module.parameters(), *module.buffers()):
                distributed.broadcast(tensor.data, src=0)

    def read_by(self, models: Iterable[Any]) -> set[str]:
        """Return the observation groups that models and extensions read."""
        stored = self.storage.observations
        groups = {group for model in models for group in observed_groups(model, stored)}
        return groups.union(*(extension.observed_groups() for extension in self.extensions))

    def _read_groups(self) -> set[str]:
        """Return the observation groups that anything reads."""
        raise NotImplementedError

    def _inputs(self) -> Inputs:
        """Return what an update reads, for the search for NaN."""
        raise NotImplementedError

    def recorded_by_extensions(self) -> dict[str, torch.Tensor]:
        """Return the labels of extensions, which may be NaN, by their names for a user."""
        recorded = {}
        for name, label in self.labels_of_extensions().items():
            for index, part in enumerate(label if isinstance(label, tuple) else (label,)):
                which = f", part {index}" if isinstance(label, tuple) else ""
                recorded[f"the label '{name}'{which}"] = part
        return recorded

    def begin_step(self, obs: TensorDict, check: Callable[[], None]) -> TensorDict:
        """Return checked observations that nobody changes; begin a rollout if it is its first step.

        A model that has acted in another number of environments starts with an empty memory, and a
        rollout that no update has taken, after an error or Ctrl+C, is dropped.

        Args:
            obs: Observations, batch size (N,).
            check: Checks on each rank what training needs and playing does not; called once.

        Raises:
            ValueError: If something is missing or does not fit.
        """
        stored = self.storage
        if not self._started:
            self.ranks.run_together(check)
        for model in self.stateful_models().values():
            state = as_tensors(model.get_hidden_state())
            if state and state[0].shape[1] != stored.num_envs:
                model.reset()
        if stored.step == stored.num_transitions_per_env:
            self.transaction.drop_rollout()
        if stored.step == 0:  # not earlier: a teacher may be set at any time
            self.step_checks.read_groups = self._read_groups()
            self.curricula.begin_rollout()
            for extension in self.extensions:
                extension.begin_rollout()
            self.transaction.begin_rollout()
        self._started = True
        obs = self.step_checks.observations(obs)
        for extension in self.extensions:
            extension.act(obs, stored.step)
        return obs

    def store(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, beyond: Any = 0.0
    ) -> None:
        """Store a step, and clear the states of finished episodes.

        Args:
            obs: Next observations, batch size (N,).
            rewards: Rewards of the environment. Shape: (N,).
            dones: Which episodes ended. Shape: (N,), bool.
            beyond: Discounted values beyond the ends of truncated episodes. Shape: (N,).
        """
        algorithm: Any = self
        for extension in self.extensions:
            rewards = extension.process_env_step(obs, rewards, dones)
        transition = algorithm.transition
        transition.rewards, transition.dones = rewards + beyond, dones
        self.storage.add_transition(transition)
        transition.clear()
        for model in self.models_that_act():
            model.reset(dones.long())  # integers, as environments give them

    def models_that_act(self) -> Iterable[Any]:
        """Return the models whose states follow the episodes, in compiled form."""
        raise NotImplementedError

    def saved_form(self, module: nn.Module) -> nn.Module:
        """Return the module whose parameters are saved in place of another one's."""
        return module

    def describe(self, models: Mapping[str, Any]) -> dict[str, Any]:
        """Return this package's part of a checkpoint: tensors and plain values.

        It has the descriptions of models and robot, and of each extension its state, and the state
        dicts of its modules and its optimiser.
        """
        described = describe_all(models, self.storage.observations, self.model_configs)
        part: dict[str, Any] = {"models": described}
        if self.robot:
            part["robot"] = self.robot
        for extension in self.extensions:
            modules = {
                name: self.saved_form(module).state_dict()
                for name, module in extension.modules.items()
            }
            optimizer = self.own_optimizers.get(extension.name)
            saved = {
                **{name: value for name, value in extension.state.items() if value is not None},
                **({"modules": modules} if modules else {}),
                **({"optimizer_state_dict": optimizer.state_dict()} if optimizer else {}),
            }
            if saved:
                part[extension.name] = saved
        return part | self.curricula.saved()

    def check_models(
        self, models: Mapping[str, Any], checkpoint: Mapping[str, Any], strict: bool
    ) -> None:
        """Check that a checkpoint has the requested models.

        Args:
            models: Models to load, by role.
            checkpoint: The checkpoint.
            strict: Whether parameters must match exactly.

        Raises:
            ValueError: If one is missing or does not fit.
        """
        for role, model in models.items():
            key, stored = f"{role}_state_dict", self.storage.observations
            if key not in checkpoint:
                raise ValueError(
                    f"The checkpoint lacks '{key}', it holds {sorted(checkpoint)}: expected one of"
                    " PPO or distillation of rsl_rl 5."
                )
            if strict and role == "rnd":
                check_matches(model, checkpoint[key], role)
            elif strict:
                source = checkpoint, self.checkpoint_path
                check_fits(model, checkpoint[key], role, stored, *source)

    def resume_rate(self, part: Mapping[str, Any]) -> None:
        """Set the config's learning rate, unless an adaptive one goes on from the checkpoint's."""
        rate, before = self.options.learning_rate, part.get("learning_rate")
        if self.options.followed_kl() is None:
            set_rate(self.optimizer, rate)
        elif before not in (None, rate):
            warnings.warn(
                f"learning_rate is {rate} and was {before} before: it has no effect on a training"
                f" that goes on with schedule='adaptive', here at {self.learning_rate:.3g}. Set"
                " schedule='fixed', or load with 'optimizer' left out of load_cfg.",
                stacklevel=4,
            )

    def load_extensions(self, part: Mapping[str, Any], load_cfg: Mapping[str, Any]) -> None:
        """Load the extensions that ``load_cfg`` asks for, by their names or with the policy.

        What a checkpoint lacks begins anew.

        Args:
            part: This package's part of a checkpoint.
            load_cfg: Parts to load.

        Raises:
            ValueError: If a module does not fit.
        """
        for extension in self.extensions:
            if not load_cfg.get(extension.name, load_cfg.get(self.policy_role)):
                continue
            saved = dict(part.get(extension.name, {}))
            state_dicts, modules = modules_of_extension(saved), extension.modules
            name = ""
            try:
                for name in [name for name in modules if name in state_dicts]:
                    modules[name].load_state_dict(state_dicts[name])
            except (ValueError, RuntimeError) as error:  # another meaning, other shapes
                place = f"{extension.name}.{name}"
                raise ValueError(f"{place} does not fit the checkpoint. {error}") from error
            optimizer = saved.pop("optimizer_state_dict", None)
            if optimizer and list(modules) == list(state_dicts) and load_cfg.get("optimizer"):
                self.own_optimizers[extension.name].load_state_dict(optimizer)
            values = {k: v for k, v in saved.items() if k not in ("modules", "heads")}
            extension.state = {**copy.deepcopy(self._initial_states[extension.name]), **values}
            for names, what in (
                ([name for name in modules if name not in state_dicts], "begin anew"),
                ([name for name in state_dicts if name not in modules], "are left out"),
            ):
                if names:
                    warnings.warn(
                        f"{extension.name}: {names} {what}, since only one of the checkpoint and"
                        " the config has them.",
                        stacklevel=4,
                    )

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
