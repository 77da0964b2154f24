"""One case of the benchmark: random robots, a network, and an algorithm of either library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

OBS_DIM, ACTION_DIM = 48, 12  # a quadruped's proprioception and its joints
HIDDEN_DIMS = [256, 128, 64]
Library = Literal["rsl_tbptt", "rsl_rl"]
CLASSES: dict[tuple[str, str], Any] = {
    ("ppo", "rsl_tbptt"): TbpttPPO,
    ("ppo", "rsl_rl"): PPO,
    ("distillation", "rsl_tbptt"): TbpttDistillation,
    ("distillation", "rsl_rl"): Distillation,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured: one epoch of updates on a rollout of random observations."""

    algorithm: Literal["ppo", "distillation"]
    num_envs: int
    num_steps: int
    gradient_length: int
    """rsl_rl's PPO cannot truncate: it always takes the whole rollout."""
    rnn_type: str = "lstm"
    rnn_hidden_dim: int = 256
    done_rate: float = 0.05
    device: str = "cpu"
    use_mixed_precision: bool = False


def build(case: Case, library: Library, **options: Any) -> Any:  # noqa: ANN401
    """Build an algorithm with its models and storage; equal cases give equal weights.

    Args:
        case: The case.
        library: Whose algorithm.
        **options: Further options of the algorithm.

    Returns:
        The algorithm.
    """
    torch.manual_seed(0)
    obs = random_obs(case)
    noise = {"class_name": "GaussianDistribution", "init_std": 1.0}
    memory = {"rnn_type": case.rnn_type, "rnn_hidden_dim": case.rnn_hidden_dim}
    shared = {"hidden_dims": HIDDEN_DIMS, "obs_normalization": True}
    groups = {role: ["policy"] for role in ("actor", "critic", "student", "teacher")}
    if case.algorithm == "ppo":
        models = (
            RNNModel(obs, groups, "actor", ACTION_DIM, distribution_cfg=noise, **shared, **memory),
            RNNModel(obs, groups, "critic", 1, **shared, **memory),
        )
        kind, lengths = "rl", {"num_learning_epochs": 1}
        if library == "rsl_tbptt":
            lengths["gradient_length"] = case.gradient_length
    else:
        models = (
            RNNModel(
                obs, groups, "student", ACTION_DIM, distribution_cfg=noise, **shared, **memory
            ),
            MLPModel(obs, groups, "teacher", ACTION_DIM, hidden_dims=HIDDEN_DIMS),
        )
        kind, lengths = "distillation", {"gradient_length": case.gradient_length}
    storage = RolloutStorage(kind, case.num_envs, case.num_steps, obs, [ACTION_DIM], case.device)
    algorithm = CLASSES[case.algorithm, library](
        *(model.to(case.device) for model in models),
        storage,
        device=case.device,
        use_mixed_precision=case.use_mixed_precision,
        **lengths,
        **options,
    )
    algorithm.train_mode()
    return algorithm


def fill(algorithm: Any, case: Case, seed: int) -> None:  # noqa: ANN401
    """Roll out random robots; equal seeds give equal observations, rewards and dones."""
    torch.manual_seed(seed)
    steps = [
        (random_obs(case), torch.randn(case.num_envs), torch.rand(case.num_envs) < case.done_rate)
        for _ in range(case.num_steps)
    ]
    with torch.inference_mode():
        for obs, rewards, dones in steps:
            algorithm.act(obs)
            algorithm.process_env_step(
                obs, rewards.to(case.device), dones.long().to(case.device), {}
            )
        algorithm.compute_returns(random_obs(case))


def random_obs(case: Case) -> TensorDict:
    """Return observations of all environments."""
    obs = torch.randn(case.num_envs, OBS_DIM).to(case.device)
    return TensorDict({"policy": obs}, batch_size=[case.num_envs], device=case.device)
