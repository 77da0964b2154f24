"""Small models, storages and rollouts shared by the tests."""

from collections.abc import Callable
from typing import Any

import torch
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

OBS_DIM, STATE_DIM, ACTION_DIM = 5, 7, 2
OBS_GROUPS = {
    "student": ["policy"],
    "teacher": ["state"],
    "actor": ["policy"],
    "critic": ["state"],
}


def make_obs(num_envs: int, generator: torch.Generator | None = None) -> TensorDict:
    """Return random observations with a "policy" and a "state" group."""
    return TensorDict(
        {
            "policy": torch.randn(num_envs, OBS_DIM, generator=generator),
            "state": torch.randn(num_envs, STATE_DIM, generator=generator),
        },
        batch_size=[num_envs],
    )


def make_model(role: str, kind: str, num_envs: int, seed: int, **kwargs: Any) -> MLPModel:
    """Build an "mlp", "lstm" or "gru" model for "student" or "teacher"."""
    obs = make_obs(num_envs)
    torch.manual_seed(seed)
    shared = {
        "obs": obs,
        "obs_groups": OBS_GROUPS,
        "obs_set": role,
        "output_dim": ACTION_DIM,
        "hidden_dims": [8],
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.3},
        **kwargs,
    }
    if kind == "mlp":
        return MLPModel(**shared)
    return RNNModel(rnn_type=kind, rnn_hidden_dim=6, **shared)


def make_distillation(
    algorithm: type[Distillation],
    num_steps: int,
    num_envs: int,
    student: str = "lstm",
    teacher: str = "mlp",
    student_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Build an algorithm with its models and storage; equal arguments give equal weights."""
    student_model = make_model("student", student, num_envs, seed=1, **(student_kwargs or {}))
    teacher_model = make_model("teacher", teacher, num_envs, seed=2)
    storage = RolloutStorage(
        "distillation", num_envs, num_steps, make_obs(num_envs), [ACTION_DIM], "cpu"
    )
    algorithm_instance = algorithm(student_model, teacher_model, storage, **options)
    algorithm_instance.train_mode()
    return algorithm_instance


def roll_out(
    algorithm: Any,
    seed: int,
    done_rate: float = 0.2,
    on_step: Callable[[int, TensorDict], None] | None = None,
) -> None:
    """Fill the storage as the runner does: act, step, process, in inference mode."""
    generator = torch.Generator().manual_seed(seed)
    num_envs = algorithm.storage.num_envs
    torch.manual_seed(seed)
    with torch.inference_mode():
        for step in range(algorithm.storage.num_transitions_per_env):
            obs = make_obs(num_envs, generator)
            if on_step is not None:
                on_step(step, obs)
            algorithm.act(obs)
            dones = (torch.rand(num_envs, generator=generator) < done_rate).long()
            algorithm.process_env_step(obs, torch.zeros(num_envs), dones, {})
        algorithm.compute_returns(obs)


def parameters_of(algorithm: Any) -> torch.Tensor:
    """Return the student's parameters as one vector."""
    return torch.nn.utils.parameters_to_vector(algorithm.student.parameters()).detach().clone()


def absolute_error(actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Stand for a user's loss given by its qualified name."""
    return (actions - labels).abs()


def ppo_parameters_of(algorithm: Any) -> torch.Tensor:
    """Return the parameters of actor and critic as one vector."""
    models = (algorithm.actor, algorithm.critic)
    vectors = [torch.nn.utils.parameters_to_vector(model.parameters()) for model in models]
    return torch.cat(vectors).detach().clone()


def make_ppo(
    algorithm: type[PPO],
    num_steps: int,
    num_envs: int,
    actor: str = "lstm",
    critic: str = "lstm",
    actor_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Build a PPO with its models and storage; equal arguments give equal weights."""
    actor_model = make_model("actor", actor, num_envs, seed=1, **(actor_kwargs or {}))
    critic_model = make_model(
        "critic", critic, num_envs, seed=2, output_dim=1, distribution_cfg=None
    )
    storage = RolloutStorage("rl", num_envs, num_steps, make_obs(num_envs), [ACTION_DIM], "cpu")
    algorithm_instance = algorithm(actor_model, critic_model, storage, **options)
    algorithm_instance.train_mode()
    return algorithm_instance


def roll_out_ppo(
    algorithm: Any,
    seed: int,
    done_rate: float = 0.2,
    on_step: Callable[[int, TensorDict, torch.Tensor], None] | None = None,
) -> None:
    """Fill the storage as the runner does, with dones and time-outs, and compute the returns."""
    generator = torch.Generator().manual_seed(seed)
    num_envs = algorithm.storage.num_envs
    torch.manual_seed(seed)
    with torch.inference_mode():
        for step in range(algorithm.storage.num_transitions_per_env):
            obs = make_obs(num_envs, generator)
            rewards = torch.randn(num_envs, generator=generator)
            if on_step is not None:
                on_step(step, obs, rewards)
            algorithm.act(obs)
            dones = torch.rand(num_envs, generator=generator) < done_rate
            time_outs = dones & (torch.rand(num_envs, generator=generator) < 0.5)
            algorithm.process_env_step(obs, rewards, dones.long(), {"time_outs": time_outs})
        algorithm.compute_returns(make_obs(num_envs, generator))


def numbered(num_steps: int, num_envs: int) -> torch.Tensor:
    """Return the number of each sample, shape (T, N)."""
    return torch.arange(num_steps * num_envs).view(num_steps, num_envs)
