"""TbpttDistillation and TbpttPPO for rsl_rl 3.1.2, the release that Isaac Lab 2.3 pins.

Importing this module registers both where that release's runners look up class names, so that
``class_name = "TbpttDistillation"`` and ``"TbpttPPO"`` work in stock scripts. They wrap the
algorithms of :mod:`rsl_tbptt.algorithms` around the networks of one ``policy`` object::

    runner --policy--> TbpttDistillation, TbpttPPO (here)
                         | take the policy apart into models, rename the storage
                       TbpttDistillation, TbpttPPO (algorithms)           the update, unchanged
                         |
                       Distillation, PPO (compat.rsl_rl3)                 rsl_rl 3.1.2's, of models

These runners tell an algorithm neither its environment nor the file that they load, so the import
also changes their ``_construct_algorithm`` and ``load``, for the algorithms here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.compat import POLICY_ERA, require_era

require_era(POLICY_ERA, "rsl_tbptt.integrations.rsl_rl_v3")

# Imported only after the check, as these need rsl_rl 3.
from rsl_rl.runners import DistillationRunner, OnPolicyRunner, distillation_runner, on_policy_runner  # noqa: E402
from rsl_rl.storage import RolloutStorage  # noqa: E402

from rsl_tbptt.algorithms import distillation, ppo  # noqa: E402
from rsl_tbptt.algorithms.env_step import tensor_groups  # noqa: E402
from rsl_tbptt.algorithms.options import PpoOptions  # noqa: E402
from rsl_tbptt.checkpoints.reading import read_checkpoint  # noqa: E402
from rsl_tbptt.compat.checkpoints import network_state  # noqa: E402
from rsl_tbptt.compat.rsl_rl3 import ModelStorage, fit_teacher, keep_with_optimizer, model_of  # noqa: E402

__all__ = ["TbpttDistillation", "TbpttPPO"]

_CONSTRUCT = "_construct_algorithm"

_NEED_A_TEACHER = {
    field.name: field.default
    for field in dataclasses.fields(PpoOptions)
    if field.name.startswith("teacher_")
}


class _OfPolicy:
    """An algorithm for models, built from a policy's networks when the runner makes the storage."""

    algorithm: Any = None
    """The algorithm; attributes that are not defined here are read from it."""

    _build: Callable[[RolloutStorage, TensorDict], Any]
    """Builds the algorithm for the policy's models, given the storage and observations."""

    def __init__(self, policy: nn.Module, **arguments: Any) -> None:
        """Keep the arguments until ``init_storage``, which the runner calls next.

        Args:
            policy: One of rsl_rl 3's policies.
            **arguments: ``device``, ``multi_gpu_cfg`` and the options of the algorithm.
        """
        self._arguments = {"device": "cpu", **arguments}
        self.policy: Any = policy.to(self._arguments["device"])

    def __getattr__(self, name: str) -> Any:
        """Read the attribute from the algorithm."""
        return getattr(self.algorithm, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option of the algorithm, which acts or raises there; or an attribute here."""
        if self.algorithm is not None and name in vars(self.algorithm.options):
            setattr(self.algorithm, name, value)
        else:
            super().__setattr__(name, value)

    def init_storage(
        self,
        training_type: str,
        num_envs: int,
        num_transitions_per_env: int,
        obs: TensorDict,
        actions_shape: list[int] | tuple[int, ...],
    ) -> None:
        """Build the storage and the algorithm.

        Args:
            training_type: "distillation" or "rl".
            num_envs: Number of environments N.
            num_transitions_per_env: Steps of a rollout T.
            obs: Observations of all environments, batch size (N,).
            actions_shape: Shape of an action, (A,).

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another.
            NotImplementedError: If the policy is not one of rsl_rl's.
        """
        sizes = (num_envs, num_transitions_per_env)
        device = self._arguments["device"]
        stored = tensor_groups(obs, {})
        storage = ModelStorage(training_type, *sizes, stored, actions_shape, device)
        self.algorithm = self._build(storage, obs)

    def go_on_from(self, path: str) -> None:
        """Let curricula go on from a checkpoint that the runner has loaded."""
        with suppress(ValueError):  # it holds objects of other packages, which rsl_rl 3 accepts
            self.algorithm.curricula.go_on_from(read_checkpoint(path, "cpu"))


class _TeacherLoaded:
    """The answer of a distillation to the runner, which reads it in the policy."""

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm

    def __bool__(self) -> bool:
        return self._algorithm.teacher_loaded


class TbpttDistillation(_OfPolicy):
    """:class:`rsl_tbptt.algorithms.TbpttDistillation` for rsl_rl 3.1.2's runner.

    A drop-in for that release's Distillation: same policies (StudentTeacher and
    StudentTeacherRecurrent), checkpoints and runner. All options work except ``loss_type="kl"``: a
    StudentTeacher has no standard deviation of the teacher's actions.
    """

    def __init__(self, policy: nn.Module, **arguments: Any) -> None:
        """Keep the arguments until ``init_storage``.

        Args:
            policy: StudentTeacher or StudentTeacherRecurrent.
            **arguments: ``device``, ``multi_gpu_cfg`` and fields of :class:`DistillationOptions`.

        Raises:
            NotImplementedError: If ``loss_type`` is "kl".
        """
        if arguments.get("loss_type") == "kl":
            raise NotImplementedError(
                "loss_type is 'kl', expected another with rsl_rl 3: its policy keeps no standard"
                " deviation of the teacher. Use 'nll' or 'mse'."
            )
        super().__init__(policy, **arguments)
        self._newest: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _build(self, storage: RolloutStorage, obs: TensorDict) -> Any:
        student = model_of(self.policy, "student")
        fit_teacher(self.policy, obs)
        teacher = model_of(self.policy, "teacher")
        algorithm = distillation.TbpttDistillation(student, teacher, storage, **self._arguments)
        self.policy.loaded_teacher = _TeacherLoaded(algorithm)

        def save() -> dict[str, Any]:
            self._put_newest()
            part = algorithm.save()["rsl_tbptt"]
            self._put_average(algorithm)
            return {"rsl_tbptt": part}

        def load(loaded: dict[str, Any]) -> None:
            of_runner = {"optimizer_state_dict": vars(algorithm.optimizer)}  # the runner loads it
            load_cfg = {"student": True, "optimizer": True}
            self._newest = []
            algorithm.load(loaded | of_runner, load_cfg, strict=False)
            self._put_average(algorithm)

        keep_with_optimizer(algorithm.optimizer, save, load)
        return algorithm

    def _put_average(self, algorithm: Any) -> None:
        """Put the average of the weights into the policy, which the runner saves and plays."""
        triples = [*algorithm._average.parameters()] if algorithm._average.num_updates else []
        self._newest = [(live, live.detach().clone()) for _, live, _ in triples]
        for _, live, average in triples:
            live.data.copy_(average)

    def _put_newest(self) -> None:
        """Put the newest weights back, which act and are trained."""
        for live, newest in self._newest:
            live.data.copy_(newest)
        self._newest = []

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Act as the algorithm does: map observations of batch size (N,) to actions (N, A)."""
        if self.policy.loaded_teacher is True:  # the policy loads checkpoints itself
            self.algorithm.teacher_file.is_loaded = True
        self._put_newest()
        return self.algorithm.act(obs)

    def update(self) -> dict[str, float]:
        """Train the student on the rollout; then the policy holds the average of its weights."""
        self._put_newest()
        metrics = self.algorithm.update()
        self._put_average(self.algorithm)
        return metrics


class TbpttPPO(_OfPolicy):
    """:class:`rsl_tbptt.algorithms.TbpttPPO` for rsl_rl 3.1.2's runner.

    A drop-in for that release's PPO: same policies (ActorCritic and ActorCriticRecurrent),
    checkpoints and runner. As in that release, the gradient of actor and critic is clipped by the
    norm over both. If the runner loads a distillation's checkpoint, its student becomes the actor;
    there is no teacher to imitate.
    """

    def __init__(self, policy: nn.Module, **arguments: Any) -> None:
        """Keep the arguments until ``init_storage``.

        Args:
            policy: ActorCritic or ActorCriticRecurrent.
            **arguments: ``device``, ``multi_gpu_cfg``, ``rnd_cfg``, ``symmetry_cfg`` and fields of
                :class:`PpoOptions`.

        Raises:
            NotImplementedError: If an option needs a teacher's model.
        """
        for name, default in _NEED_A_TEACHER.items():
            if arguments.get(name, default) != default:
                raise NotImplementedError(
                    f"{name} is {arguments[name]!r}, expected {default!r} with rsl_rl 3: its runner"
                    " builds no teacher model for PPO."
                )
        super().__init__(policy, **arguments)
        self._loaded_student = False

    def _build(self, storage: RolloutStorage, obs: TensorDict) -> Any:
        actor, critic = model_of(self.policy, "actor"), model_of(self.policy, "critic")
        algorithm = ppo.TbpttPPO(actor, critic, storage, **self._arguments)

        def load(loaded: dict[str, Any]) -> None:
            of_models = {"actor_state_dict": {}, "rnd_state_dict": {}}  # the runner loads these
            of_runner = {**of_models, "optimizer_state_dict": vars(algorithm.optimizer)}
            load_cfg = {"actor": True, "optimizer": True, "rnd": True}
            algorithm.load(loaded | of_runner, load_cfg, strict=False)

        self.policy.register_load_state_dict_pre_hook(self._before_policy_is_loaded)
        keep_with_optimizer(
            algorithm.optimizer, algorithm.save, load, replaces=lambda: self._loaded_student
        )
        return algorithm

    def update(self) -> dict[str, float]:
        """Train actor and critic on the rollout and clear the storage.

        Returns:
            The metrics of :class:`rsl_tbptt.algorithms.TbpttPPO`, with ``value`` under rsl_rl 3's
            name, ``value_function``.
        """
        metrics = self.algorithm.update()
        return {"value_function" if name == "value" else name: v for name, v in metrics.items()}

    def _before_policy_is_loaded(
        self, policy: nn.Module, state_dict: dict[str, Any], *_: object
    ) -> None:
        """Make a distillation's student the actor; the policy then loads its own parameters.

        Raises:
            ValueError: If the student does not fit. Nothing is changed then.
        """
        self._loaded_student = any(key.startswith("student.") for key in state_dict)
        if self._loaded_student:
            student = network_state(state_dict, "student")
            self.algorithm.load({"student_state_dict": student}, None, strict=True)
            state_dict.clear()
            state_dict.update(policy.state_dict())


def _with_env(construct: Callable[..., Any]) -> Callable[..., Any]:
    """Return a runner's method that also gives our algorithm the environment."""

    @functools.wraps(construct)
    def construct_and_join(runner: Any, obs: TensorDict) -> Any:
        algorithm = construct(runner, obs)
        if isinstance(algorithm, _OfPolicy):
            algorithm.curricula.join(runner.env)
        return algorithm

    return construct_and_join


def _with_curricula(load: Callable[..., dict]) -> Callable[..., dict]:
    """Return a runner's method that also tells our algorithm the file; by default on its device."""

    @functools.wraps(load)
    def load_and_go_on(
        runner: Any, path: str, load_optimizer: bool = True, map_location: str | None = None
    ) -> dict:
        if not isinstance(runner.alg, _OfPolicy):
            return load(runner, path, load_optimizer, map_location)
        infos = load(runner, path, load_optimizer, map_location or runner.device)
        runner.alg.go_on_from(path)
        return infos

    return load_and_go_on


# By setattr, as the types of rsl_rl 5 and of the modules have no such attributes.
for _runner in (OnPolicyRunner, DistillationRunner):
    setattr(_runner, _CONSTRUCT, _with_env(getattr(_runner, _CONSTRUCT)))
setattr(OnPolicyRunner, "load", _with_curricula(OnPolicyRunner.load))  # noqa: B010, as above
setattr(distillation_runner, TbpttDistillation.__name__, TbpttDistillation)
setattr(on_policy_runner, TbpttPPO.__name__, TbpttPPO)
