"""Short trainings on the recall task, healthy or with a known fault."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
import yaml
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from tensordict import TensorDict

from rsl_tbptt_tasks.memory import RecallEnv

RECALL_LENGTH, NUM_ENVS, NUM_STEPS = 4, 64, 20
MEMORY = {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 32, "rnn_num_layers": 1}
NOISE = {"class_name": "GaussianDistribution", "init_std": 0.5}


class ScaledRecallEnv(RecallEnv):
    """The recall task with observation groups in other units."""

    def __init__(self, *args: Any, scales: dict[str, float], **options: Any) -> None:
        self.scales = scales
        super().__init__(*args, **options)

    def get_observations(self) -> TensorDict:
        obs = super().get_observations()
        for group, scale in self.scales.items():
            obs[group] = obs[group] * scale
        return obs


class BlindRecallEnv(RecallEnv):
    """The recall task with the cue hidden from the student."""

    def get_observations(self) -> TensorDict:
        obs = super().get_observations()
        obs["policy"] = obs["policy"] * torch.tensor([0.0, 1.0])
        return obs


def recall(
    env_class: type[RecallEnv] = RecallEnv,
    recall_length: int = RECALL_LENGTH,
    seed: int = 1,
    **options: Any,
) -> RecallEnv:
    """Make the task's environments."""
    return env_class(NUM_ENVS, recall_length, seed=seed, **options)


def train_ppo(
    folder: Path, seed: int, *, env: RecallEnv | None = None, iterations: int = 60, **options: Any
) -> Path:
    """Train PPO with a memory; return its log folder."""
    cfg = {
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttPPO",
            "learning_rate": 2e-3,
            "num_learning_epochs": 4,
            "num_mini_batches": 1,
            "entropy_coef": 0.0,
            **options,
        },
        "actor": {**MEMORY, "hidden_dims": [32], "distribution_cfg": NOISE},
        "critic": {**MEMORY, "hidden_dims": [32]},
    }
    return _train(OnPolicyRunner, cfg, folder, seed, env, iterations, None)


def train_student(
    folder: Path,
    seed: int,
    teacher: dict[str, torch.Tensor],
    *,
    env: RecallEnv | None = None,
    iterations: int = 120,
    normalizes: bool = True,
    student: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Distil a teacher with given parameters into a recurrent student; return the log folder."""
    cfg = {
        "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
            "gradient_length": 10,
            "learning_rate": 5e-3,
            "num_learning_epochs": 1,
            "num_mini_batches": 1,
            "buffer_rollouts": 0,
            **options,
        },
        "student": {**MEMORY, "hidden_dims": [32], "distribution_cfg": NOISE, **(student or {})},
        "teacher": {"class_name": "MLPModel", "hidden_dims": [16], "obs_normalization": normalizes},
    }
    return _train(DistillationRunner, cfg, folder, seed, env, iterations, teacher)


def _train(
    runner_class: type,
    cfg: dict[str, Any],
    folder: Path,
    seed: int,
    env: RecallEnv | None,
    iterations: int,
    teacher: dict[str, torch.Tensor] | None,
) -> Path:
    torch.manual_seed(seed)
    cfg = {"num_steps_per_env": NUM_STEPS, "save_interval": 1000, **cfg}
    (folder / "params").mkdir(parents=True)
    (folder / "params" / "agent.yaml").write_text(yaml.safe_dump(cfg))
    env = env or recall(seed=seed)
    with contextlib.redirect_stdout(io.StringIO()):
        runner = runner_class(env, cfg, log_dir=str(folder))
        if teacher is not None:
            runner.alg.teacher.load_state_dict(teacher)
            runner.alg.teacher_loaded = True
        runner.learn(iterations)
        runner.logger.writer.close()
    return folder


def fitted_teacher(seed: int = 0, *, normalizes: bool = True) -> dict[str, torch.Tensor]:
    """Fit a small network to the answers; return its parameters."""
    from rsl_rl.models import MLPModel

    torch.manual_seed(seed)
    env = RecallEnv(256, RECALL_LENGTH, seed=seed)
    obs = env.get_observations()
    groups = {"teacher": ["privileged"]}
    model = MLPModel(obs, groups, "teacher", 1, [16], "elu", obs_normalization=normalizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        obs, _, _, _ = env.step(torch.zeros(256, 1))
        model.update_normalization(obs)
        loss = (model(obs) - obs["privileged"][:, 2:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
