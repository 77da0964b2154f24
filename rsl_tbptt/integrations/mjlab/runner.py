"""Runners for mjlab: distillation, and policies that forget where an episode starts.

Both cooperate with a task's own runner, which then adds what it does, such as mjlab's export with
metadata at every save::

    class MyRunner(TbpttMjlabDistillationRunner, VelocityOnPolicyRunner): ...
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from mjlab.rl import MjlabOnPolicyRunner, RslRlVecEnvWrapper
from rsl_rl.models import MLPModel
from rsl_rl.runners import DistillationRunner
from tensordict import TensorDict


class EpisodicPolicy:
    """A recurrent policy that clears its memory where an episode starts.

    mjlab's viewers step a policy and the environment, and never tell the policy which episodes
    ended.
    """

    def __init__(self, policy: MLPModel, env: RslRlVecEnvWrapper) -> None:
        """Take the policy and the environment that it acts in."""
        self._policy, self._env = policy, env

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Act. Observations have the batch size (N,), actions the shape (N, A)."""
        self._policy.reset(self._env.episode_length_buf == 0)
        return self._policy(obs)

    def reset(self) -> None:
        """Clear the memory in all environments."""
        self._policy.reset()


class TbpttMjlabRecurrentRunner(MjlabOnPolicyRunner):
    """mjlab's runner, for policies with memory; one without is treated as mjlab does."""

    def get_inference_policy(self, device: str | None = None) -> MLPModel | EpisodicPolicy:
        """Return the policy that ``play`` runs.

        Args:
            device: Device of the policy.

        Returns:
            The model, and where it has memory, something that clears it at episode starts.
        """
        policy = super().get_inference_policy(device)
        return EpisodicPolicy(policy, self.env) if policy.is_recurrent else policy


class TbpttMjlabDistillationRunner(TbpttMjlabRecurrentRunner, DistillationRunner):
    """The distillation runner that mjlab lacks, for tasks with a ``TbpttDistillationRunnerCfg``.

    rsl_rl's asks for the teacher before it learns.
    """

    alg: Any
    """An algorithm of this package, or any other that the task's config names."""

    def __init__(
        self,
        env: RslRlVecEnvWrapper,
        train_cfg: dict[str, Any],
        log_dir: str | None = None,
        device: str = "cpu",
        **further: Any,
    ) -> None:
        """Build models, algorithm and logger.

        Args:
            env: The environment.
            train_cfg: A :class:`TbpttDistillationRunnerCfg` as a dictionary.
            log_dir: Folder of logs and checkpoints, or None for neither.
            device: Device of models and update.
            **further: Arguments of a task's own runner.
        """
        train_cfg = copy.deepcopy(train_cfg)  # rsl_rl takes entries out of it
        train_cfg |= {role: model_arguments(train_cfg[role]) for role in ("student", "teacher")}
        super().__init__(env, train_cfg, log_dir, device, **further)

    def load(
        self,
        path: str,
        load_cfg: dict[str, bool] | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> dict:
        """Load a checkpoint: a teacher's gives the teacher, a student's everything.

        The environment's step counter comes with it, and with that the stage of its curricula.

        Args:
            path: Checkpoint of PPO or distillation.
            load_cfg: What to load, or None for the above. ``play`` asks for the ``"actor"``, which
                is the student here.
            strict: Whether parameters must match exactly.
            map_location: Device of the loaded tensors.

        Returns:
            What was saved beside the models.

        Raises:
            ValueError: If the parameters do not fit, or if the models are known to have been
                configured otherwise. Nothing is changed then.
        """
        self.alg.checkpoint_path = path
        if load_cfg is not None and "actor" in load_cfg:
            load_cfg = {"student": load_cfg["actor"]}
        return super().load(path, load_cfg, strict, map_location)


def model_arguments(model_cfg: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a model's config what mjlab's config class has for other models.

    Args:
        model_cfg: A ``RslRlModelCfg`` as a dictionary, or a ``TbpttTeachersCfg``.

    Returns:
        ``"class_name"`` and the arguments of that class.
    """
    if "teachers" in model_cfg:
        teachers = model_cfg["teachers"].items()
        own = {name: {**each, "cfg": model_arguments(each["cfg"])} for name, each in teachers}
        return {**model_cfg, "teachers": own}
    unset = {name for name in ("cnn_cfg", "distribution_cfg") if model_cfg.get(name) is None}
    if model_cfg.get("rnn_type") is None:
        unset |= {"rnn_type", "rnn_hidden_dim", "rnn_num_layers"}
    return {name: value for name, value in model_cfg.items() if name not in unset}
