"""Small runs on the recall task with safe checkpoints; other processes import this as well."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner

from rsl_tbptt.runners import TbpttDistillationRunner, TbpttOnPolicyRunner
from rsl_tbptt_tasks.memory import RecallEnv

NUM_ENVS = 4
STEPS = 6
"""Of a rollout."""

RUNNERS = {"distillation": TbpttDistillationRunner, "ppo": TbpttOnPolicyRunner}
STOCK = {"distillation": DistillationRunner, "ppo": OnPolicyRunner}


class DisturbedEnv(RecallEnv):
    """Calls functions before some of its steps, counted from 1."""

    def __init__(
        self, at: Mapping[int, Callable[[], object]], num_envs: int = NUM_ENVS, seed: int = 0
    ) -> None:
        super().__init__(num_envs, 3, seed=seed)
        self.at, self.num_steps = at, 0

    def step(self, actions: torch.Tensor) -> tuple:
        self.num_steps += 1
        self.at.get(self.num_steps, lambda: None)()
        return super().step(actions)


def die() -> None:
    """Fail as a simulator does."""
    raise RuntimeError("the simulator died")


def send(number: int) -> Callable[[], None]:
    """Return a function that sends this process a signal."""
    return lambda: os.kill(os.getpid(), number)


def names(folder: Path) -> list[str]:
    """Return the names of a folder's checkpoints."""
    return sorted(path.name for path in folder.glob("*.pt"))


def model_cfg(class_name: str, **kwargs: Any) -> dict[str, Any]:
    """Return a new config, because rsl_rl before 5.5 removes entries from it."""
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.1}
    recurrent = {"rnn_type": "lstm", "rnn_hidden_dim": 8, "rnn_num_layers": 1}
    return {
        "class_name": class_name,
        "hidden_dims": [8],
        "activation": "elu",
        "distribution_cfg": gaussian,
        **(recurrent if class_name == "RNNModel" else {}),
        **kwargs,
    }


def train_cfg(kind: str = "distillation", **algorithm: Any) -> dict[str, Any]:
    """Return a runner's config that saves after every iteration."""
    roles = ("student", "teacher") if kind == "distillation" else ("actor", "critic")
    name = "TbpttDistillation" if kind == "distillation" else "TbpttPPO"
    models = {roles[0]: model_cfg("RNNModel"), roles[1]: model_cfg("MLPModel")}
    if kind == "ppo":
        del models["critic"]["distribution_cfg"]
    algorithm = {"class_name": f"rsl_tbptt.algorithms:{name}", "gradient_length": 3, **algorithm}
    return {
        "num_steps_per_env": STEPS,
        "save_interval": 1,
        "obs_groups": {roles[0]: ["policy"], roles[1]: ["privileged"]},
        "algorithm": algorithm,
        **models,
    }


def teacher_cfg() -> dict[str, Any]:
    """Return entries of a config with which PPO trains a teacher for the others."""
    groups = {"actor": ["privileged"], "critic": ["privileged"]}
    options = {"gradient_length": None}
    return {"algorithm": options, "obs_groups": groups, "actor": model_cfg("MLPModel")}


def make_runner(
    log_dir: Path | None = None,
    kind: str = "distillation",
    runner_class: type | None = None,
    algorithm: dict[str, Any] | None = None,
    env: Any = None,
    **config: Any,
) -> Any:
    """Build a runner whose teacher counts as loaded; equal arguments give equal parameters."""
    torch.manual_seed(0)
    env = env or RecallEnv(NUM_ENVS, 3)
    cfg = {**train_cfg(kind, **(algorithm or {})), **config}
    runner = (runner_class or RUNNERS[kind])(env, cfg, log_dir and str(log_dir))
    runner.logger.git_status_repos = []  # which takes seconds
    if kind == "distillation":
        runner.alg.teacher_loaded = True
    return runner
