"""Small policies, algorithms and rollouts of rsl_rl 3, shared by its tests."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rsl_rl.algorithms import Distillation
from rsl_rl.modules import (
    ActorCritic,
    ActorCriticRecurrent,
    StudentTeacher,
    StudentTeacherRecurrent,
)
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.compat.rsl_rl3 import fit_teacher
from rsl_tbptt.integrations import rsl_rl_v3
from support.one_pass import ONE_PASS

OBS_DIM, STATE_DIM, ACTION_DIM, HIDDEN_DIM = 5, 7, 2, 6
OBS_GROUPS = {"policy": ["policy"], "teacher": ["state"], "critic": ["state"]}


NUM_STEPS, NUM_ENVS = 7, 6
"""Of a rollout in the table of cases."""


def make_obs(num_envs: int, generator: torch.Generator | None = None) -> TensorDict:
    """Return random observations with a "policy" and a "state" group."""
    return TensorDict(
        {
            "policy": torch.randn(num_envs, OBS_DIM, generator=generator),
            "state": torch.randn(num_envs, STATE_DIM, generator=generator),
        },
        batch_size=[num_envs],
    )


def make_student_teacher(kind: str = "lstm", seed: int = 1, **kwargs: Any) -> Any:
    """Build a policy whose student is an "mlp", "lstm" or "gru"; equal arguments, equal weights."""
    torch.manual_seed(seed)
    shared = {"student_hidden_dims": [8], "teacher_hidden_dims": [8], "init_noise_std": 0.3}
    shared = {**shared, **_memory(kind), **kwargs}
    policy_class = StudentTeacher if kind == "mlp" else StudentTeacherRecurrent
    policy = policy_class(make_obs(1), OBS_GROUPS, ACTION_DIM, **shared)
    fit_teacher(policy, make_obs(1))  # rsl_rl's own cannot run without it
    return policy


def make_actor_critic(
    kind: str = "lstm", seed: int = 1, obs_groups: dict[str, list[str]] = OBS_GROUPS, **kwargs: Any
) -> Any:
    """Build a policy whose actor and critic are "mlp", "lstm" or "gru"."""
    torch.manual_seed(seed)
    shared = {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "init_noise_std": 0.3}
    shared = {**shared, **_memory(kind), **kwargs}
    policy_class = ActorCritic if kind == "mlp" else ActorCriticRecurrent
    return policy_class(make_obs(1), obs_groups, ACTION_DIM, **shared)


def _memory(kind: str) -> dict[str, Any]:
    return {} if kind == "mlp" else {"rnn_type": kind, "rnn_hidden_dim": HIDDEN_DIM}


def make_distillation(
    algorithm: type,
    num_steps: int,
    num_envs: int,
    student: str = "lstm",
    policy_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Build an algorithm as the runner does; equal arguments give equal weights."""
    policy = make_student_teacher(student, **(policy_kwargs or {}))
    if algorithm is not Distillation:  # then one pass over each rollout, as rsl_rl's
        options = ONE_PASS | options
    options = {"gradient_length": 3, **options}
    return _constructed(algorithm, policy, "distillation", num_steps, num_envs, options)


def make_ppo(
    algorithm: type,
    num_steps: int,
    num_envs: int,
    kind: str = "lstm",
    policy_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Build an algorithm as the runner does; equal arguments give equal weights."""
    policy = make_actor_critic(kind, **(policy_kwargs or {}))
    return _constructed(algorithm, policy, "rl", num_steps, num_envs, options)


def _constructed(
    algorithm: type, policy: nn.Module, training_type: str, num_steps: int, num_envs: int, options
) -> Any:
    instance = algorithm(policy, device="cpu", **options, multi_gpu_cfg=None)
    obs = make_obs(num_envs, torch.Generator())  # leaves the networks' random numbers alone
    instance.init_storage(training_type, num_envs, num_steps, obs, [ACTION_DIM])
    policy.train()
    return instance


def roll_out(
    algorithm: Any,
    seed: int,
    done_rate: float = 0.2,
    on_step: Callable[[int, TensorDict], None] | None = None,
) -> None:
    """Fill the storage as the runners do, with dones and time-outs, in inference mode."""
    generator = torch.Generator().manual_seed(seed)
    num_envs = algorithm.storage.num_envs
    torch.manual_seed(seed)
    with torch.inference_mode():
        for step in range(algorithm.storage.num_transitions_per_env):
            obs = make_obs(num_envs, generator)
            rewards = torch.randn(num_envs, generator=generator)
            if on_step is not None:
                on_step(step, obs)
            algorithm.act(obs)
            dones = torch.rand(num_envs, generator=generator) < done_rate
            time_outs = dones & (torch.rand(num_envs, generator=generator) < 0.5)
            algorithm.process_env_step(obs, rewards, dones.long(), {"time_outs": time_outs})
        if algorithm.storage.training_type == "rl":
            algorithm.compute_returns(make_obs(num_envs, generator))


def parameters_of(algorithm: Any) -> torch.Tensor:
    """Return the policy's parameters as one vector."""
    return nn.utils.parameters_to_vector(algorithm.policy.parameters()).detach().clone()


def builds() -> dict[str, Callable[[], Any]]:
    """Return what makes the algorithms of the table of cases, by name."""
    students = {
        **{f"student-{kind}": {"student": kind} for kind in ("mlp", "lstm", "gru")},
        "sum-drop": {"loss_reduction": "sum", "tail": "drop"},
        "nll-chunks": {"loss_type": "nll", "num_micro_batches": 2},
        "dagger": {"teacher_action_share": 0.5},
        "normalized": {"policy_kwargs": {"student_obs_normalization": True}},
        "buffer": {"buffer_rollouts": 2, "save_buffer": True, "num_mini_batches": 2},
        "heads-average": {"auxiliary": {"state": {"target": "state"}}, "weight_average": True},
    }
    reinforced = {
        **{f"models-{kind}": {"kind": kind} for kind in ("mlp", "lstm", "gru")},
        "window": {"minibatch_unit": "window"},
        "clipped": {"max_grad_norm": 0.1, "optimizer": "sgd"},
        "normalized": {"policy_kwargs": {"actor_obs_normalization": True}},
        "log-std": {"policy_kwargs": {"noise_std_type": "log"}},
    }

    def distillation(options: dict[str, Any]) -> Any:
        return make_distillation(rsl_rl_v3.TbpttDistillation, NUM_STEPS, NUM_ENVS, **options)

    def ppo(options: dict[str, Any]) -> Any:
        shared: dict[str, Any] = {"num_mini_batches": 2, "num_learning_epochs": 2}
        if options.get("kind") != "mlp":
            shared |= {"gradient_length": 3, "scan_engine": "reference"}
        return make_ppo(rsl_rl_v3.TbpttPPO, NUM_STEPS, NUM_ENVS, **shared | options)

    return {
        **{f"distillation-{n}": partial(distillation, o) for n, o in students.items()},
        **{f"ppo-{n}": partial(ppo, o) for n, o in reinforced.items()},
    }
