"""PPO that goes on with a distilled student: action noise, critic warm-up, kickstarting."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.utils import resolve_obs_groups
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.checkpoints.reading import check_matches
from rsl_tbptt.checkpoints.trained_models import check_configured_alike
from rsl_tbptt.compat.versions import (
    MLPModel,
    config_advice,
    resolve_callable,
    teacher_state_dict,
)
from rsl_tbptt.core.hidden_state import HiddenState


class FineTuning:
    """Where PPO stands after a student became the actor. Without one nothing here has an effect.

    ::

        updates    0 1 2 3 4 5 6 7      critic_warmup_iterations = 3, teacher_kl_updates = 4
        actor      held  trained
        KL term    1 1 1 1 .75 .5 .25 0 times teacher_kl_coef

    References:
        Schmitt et al. (2018), "Kickstarting deep reinforcement learning", for the KL divergence
        from the teacher's policy that is added to the loss.
    """

    def __init__(self, actor: MLPModel, options: PpoOptions, *, is_first_rank: bool) -> None:
        """Take the actor that a student shall become.

        Args:
            actor: The actor.
            options: What shall happen then.
            is_first_rank: Whether this process speaks for all.

        Raises:
            NotImplementedError: If ``student_action_std`` has no parameter to set.
        """
        if options.student_action_std is not None:
            _std_parameter(actor)
        self._actor, self._options, self._is_first_rank = actor, options, is_first_rank
        self._num_updates: int | None = None
        self._teacher: MLPModel | None = None
        self._recorded: list[tuple[torch.Tensor, ...]] = []

    def set_teacher(self, teacher: MLPModel) -> None:
        """Take the teacher's model; a checkpoint will bring its parameters.

        Raises:
            NotImplementedError: If its distribution is not of the actor's kind.
        """
        ours, theirs = type(self._actor.distribution), type(teacher.distribution)
        if theirs is not ours:
            raise NotImplementedError(
                f"The teacher's distribution is a {theirs.__name__}, expected a {ours.__name__}"
                " like the actor's: kickstarting compares them. Set 'teacher_cfg.distribution_cfg'."
            )
        self._teacher = teacher

    @property
    def holds_actor(self) -> bool:
        """Whether this update trains only the critic."""
        warmup = self._options.critic_warmup_iterations
        return self._num_updates is not None and self._num_updates < warmup

    @property
    def kickstarting_coef(self) -> float:
        """Weight of the KL divergence from the teacher's policy in this update."""
        if self._teacher is None or self._num_updates is None:
            return 0.0
        trained = max(0, self._num_updates - self._options.critic_warmup_iterations)
        share = trained / (self._options.teacher_kl_updates or math.inf)
        return self._options.teacher_kl_coef * max(0.0, 1.0 - share)

    def observe(self, obs: TensorDict, step: int) -> None:
        """Record the teacher's action distribution at a step, while it counts.

        The teacher sees the rollout as it happens, so a recurrent one keeps its memory.

        Args:
            obs: Observations of all environments, batch size (N,).
            step: Step of the rollout.
        """
        if self._teacher is None or self.kickstarting_coef == 0:
            return
        if step == 0:
            self._recorded.clear()
        self._teacher(obs, stochastic_output=True)
        params = self._teacher.output_distribution_params
        self._recorded.append(tuple(param.detach() for param in params))

    def teacher_params(self) -> tuple[torch.Tensor, ...]:
        """Return what was recorded in this rollout, shape (T, N, A) each; empty without any."""
        return tuple(torch.stack(params) for params in zip(*self._recorded, strict=True))

    def reset(self, dones: torch.Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Clear the teacher's state where an episode ended, (N,), or set it, as models do."""
        if self._teacher is not None:
            self._teacher.reset(dones, hidden_state)

    def get_hidden_state(self) -> HiddenState:
        """Return the teacher's state, as models do."""
        return None if self._teacher is None else self._teacher.get_hidden_state()

    def count_update(self) -> None:
        """Go on in the schedules."""
        self._recorded.clear()
        if self._num_updates is not None:
            self._num_updates += 1

    def start(self, checkpoint: Mapping[str, Any], obs: TensorDict, strict: bool) -> None:
        """Make the student of a distillation checkpoint the actor and start the schedules.

        Args:
            checkpoint: Checkpoint of a distillation.
            obs: Observations of any batch size.
            strict: Whether the student's parameters must match exactly.

        Raises:
            ValueError: If it does not fit. Nothing is changed then.
        """
        student = checkpoint["student_state_dict"]
        if strict:
            for role, model in (("actor", self._actor), ("teacher", self._teacher)):
                if model is not None:
                    check_configured_alike(model, obs, role, checkpoint, None)
            check_matches(self._actor, student, "actor", config_advice)
        if self._teacher is not None:
            self._load_teacher(teacher_state_dict(checkpoint, "The checkpoint"))
        self._actor.load_state_dict(student, strict=strict)
        if self._options.student_action_std is not None:
            name, parameter = _std_parameter(self._actor)
            std = self._options.student_action_std
            parameter.data.fill_(math.log(std) if name.startswith("log") else std)
        self._num_updates = 0
        if self._is_first_rank:
            self._announce()

    def _announce(self) -> None:
        """Print what became of the student and what happens next.

        Printed, as rsl_rl prints its models: nobody sets up logging in the training scripts, where
        all below a warning is lost, and nothing is wrong here that one should be warned of.
        """
        options = self._options
        noise = options.student_action_std or "the student's own"
        warmup, kickstarting = options.critic_warmup_iterations, options.teacher_kl_coef or "none"
        parts = [
            "TbpttPPO: the checkpoint's student is the actor now, the critic is fresh.",
            f"Action noise: {noise} (student_action_std).",
            f"Updates of the critic alone: {warmup} (critic_warmup_iterations).",
            f"Kickstarting by the teacher: {kickstarting} (teacher_kl_coef).",
        ]
        print(*parts)  # noqa: T201

    def check_training(self) -> None:
        """Say what has no effect on a training that starts without a student.

        Raises:
            ValueError: If kickstarting is asked for and no checkpoint brought the teacher.
        """
        options = self._options
        if self._num_updates is not None:
            return
        if options.teacher_kl_coef > 0:
            raise ValueError(
                f"teacher_kl_coef is {options.teacher_kl_coef}, expected 0 without the checkpoint"
                " of a distilled student, which brings the teacher: name the student's file with"
                " --checkpoint FILE, or remove teacher_cfg and teacher_kl_coef."
            )
        ignored = [
            f"{name} is {getattr(options, name)}"
            for name in ("student_action_std", "critic_warmup_iterations")
            if getattr(options, name) != getattr(PpoOptions, name)
        ]
        if ignored:
            warnings.warn(
                f"{' and '.join(ignored)}, which has no effect: no checkpoint of a distilled"
                " student was loaded. Name the student's file with --checkpoint FILE, or leave"
                " the options at their defaults.",
                stacklevel=4,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on in the schedules; empty without a student."""
        if self._num_updates is None:
            return {}
        state: dict[str, Any] = {"num_updates": self._num_updates}
        if self._teacher is not None:
            state["teacher_state_dict"] = self._teacher.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict()`` was taken.

        Raises:
            ValueError: If the teacher is missing or does not fit. Nothing is changed then.
        """
        if self._teacher is not None and state:
            if "teacher_state_dict" not in state:
                raise ValueError(
                    "The checkpoint holds a student without its teacher, expected both with"
                    " teacher_kl_coef: load the distillation's checkpoint, or set it to 0."
                )
            self._load_teacher(state["teacher_state_dict"])
        self._num_updates = state.get("num_updates")

    def _load_teacher(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        assert self._teacher is not None
        check_matches(self._teacher, state_dict, "teacher")
        self._teacher.load_state_dict(state_dict)
        self._teacher.eval()


def build_teacher(obs: TensorDict, env: VecEnv, cfg: dict[str, Any], device: str) -> MLPModel:
    """Build the teacher that ``cfg["algorithm"]["teacher_cfg"]`` describes.

    Args:
        obs: Observations of the environment.
        env: The environment.
        cfg: The runner's config. Its observation set "teacher" is what the teacher sees.
        device: Where the teacher lives.

    Returns:
        An untrained model.
    """
    arguments = copy.deepcopy(cfg["algorithm"]["teacher_cfg"])  # models take entries out of it
    model_class = resolve_callable(arguments.pop("class_name"))
    obs_groups = resolve_obs_groups(obs, cfg["obs_groups"], ["teacher"])
    return model_class(obs, obs_groups, "teacher", env.num_actions, **arguments).to(device)


def _std_parameter(actor: MLPModel) -> tuple[str, nn.Parameter]:
    """Return name and parameter, shape (A,), of the actions' (log) standard deviation.

    Raises:
        NotImplementedError: If it is not a parameter of its own.
    """
    if actor.distribution is not None:
        for name, parameter in actor.distribution.named_parameters():
            if name in ("std_param", "log_std_param"):
                return name, parameter
    raise NotImplementedError(
        f"student_action_std is set, but the actor's {type(actor.distribution).__name__} has no"
        " standard deviation of its own: use a GaussianDistribution or leave it at None."
    )
