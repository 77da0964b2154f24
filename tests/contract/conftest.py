"""Configs and names of each era of rsl_rl, for the tests of the contract."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner

from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era
from rsl_tbptt_tasks.memory import RecallEnv

NUM_STEPS, NUM_ENVS = 6, 6
RNN_DIM = 3
"""Equal to the number of the teacher's observations: with a recurrent student rsl_rl 3.1.2 builds a
memoryless teacher with this number of inputs."""

RUNNERS = {"distillation": DistillationRunner, "ppo": OnPolicyRunner}


class ModelsEra:
    """rsl_rl 5: a model per role; the algorithms by qualified name."""

    value_loss = "value"

    prefix = "rsl_tbptt.algorithms:"

    def models(self, kind: str, recurrent: bool) -> dict[str, Any]:
        noise = {"class_name": "GaussianDistribution", "init_std": 0.1}
        mlp = {"class_name": "MLPModel", "hidden_dims": [8], "distribution_cfg": noise}
        rnn = {**mlp, "class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": RNN_DIM}
        trained = rnn if recurrent else mlp
        if kind == "distillation":
            groups = {"student": ["policy"], "teacher": ["privileged"]}
            return {"obs_groups": groups, "student": trained, "teacher": mlp}
        groups = {"actor": ["policy"], "critic": ["privileged"]}
        critic = {key: value for key, value in trained.items() if key != "distribution_cfg"}
        return {"obs_groups": groups, "actor": trained, "critic": critic}

    def teacher_models(self) -> dict[str, Any]:
        """Return the models of a PPO whose actor can teach in :meth:`models`."""
        cfg = self.models("ppo", recurrent=False)
        cfg["obs_groups"]["actor"] = ["privileged"]
        return cfg

    def declare_teacher_loaded(self, algorithm: Any) -> None:
        algorithm.teacher_loaded = True

    def parameters(self, algorithm: Any) -> torch.Tensor:
        roles = ("student",) if hasattr(algorithm, "student") else ("actor", "critic")
        return as_vector(*(getattr(algorithm, role) for role in roles))

    def teacher_parameters(self, algorithm: Any) -> torch.Tensor:
        return as_vector(algorithm.teacher)

    def actor_parameters(self, algorithm: Any) -> torch.Tensor:
        return as_vector(algorithm.actor)

    def state(self, algorithm: Any) -> torch.Tensor:
        """Return the LSTM's output state of student or actor, shape (L, N, H)."""
        model = getattr(algorithm, "student", None) or algorithm.actor
        return model.get_hidden_state()[0]


class PolicyEra:
    """rsl_rl 3.1.2: one ``policy`` object; the algorithms by a name that the runner evaluates."""

    value_loss = "value_function"

    prefix = ""

    def models(self, kind: str, recurrent: bool) -> dict[str, Any]:
        roles = ("student", "teacher") if kind == "distillation" else ("actor", "critic")
        name = "StudentTeacher" if kind == "distillation" else "ActorCritic"
        policy = {"class_name": name, "init_noise_std": 0.1}
        policy |= {f"{role}_hidden_dims": [8] for role in roles}
        if recurrent:
            policy["class_name"] += "Recurrent"
            policy |= {"rnn_type": "lstm", "rnn_hidden_dim": RNN_DIM}
        groups = {"policy": ["policy"], roles[1]: ["privileged"]}
        return {"obs_groups": groups, "policy": policy}

    def teacher_models(self) -> dict[str, Any]:
        """Return the models of a PPO whose actor can teach in :meth:`models`."""
        cfg = self.models("ppo", recurrent=False)
        cfg["obs_groups"]["policy"] = ["privileged"]
        return cfg

    def declare_teacher_loaded(self, algorithm: Any) -> None:
        algorithm.policy.loaded_teacher = True

    def parameters(self, algorithm: Any) -> torch.Tensor:
        return as_vector(algorithm.policy)

    def teacher_parameters(self, algorithm: Any) -> torch.Tensor:
        return as_vector(algorithm.policy.teacher)

    def actor_parameters(self, algorithm: Any) -> torch.Tensor:
        return as_vector(algorithm.policy.actor)

    def state(self, algorithm: Any) -> torch.Tensor:
        """Return the LSTM's output state of student or actor, shape (L, N, H)."""
        return algorithm.policy.get_hidden_states()[0][0]


def as_vector(*modules: torch.nn.Module) -> torch.Tensor:
    """Return the parameters of modules as one vector, without the noise of the actions."""
    named = [pair for module in modules for pair in module.named_parameters()]
    weights = [parameter.flatten() for name, parameter in named if "std" not in name]
    return torch.cat(weights).detach().clone()


@pytest.fixture(scope="session")
def era() -> ModelsEra | PolicyEra:
    """The era of the rsl_rl that the tests run with."""
    if rsl_rl_era() == MODELS_ERA:
        return ModelsEra()
    import rsl_tbptt.integrations.rsl_rl_v3  # noqa: F401  registers the algorithms

    return PolicyEra()


@pytest.fixture
def make_runner(era: ModelsEra | PolicyEra) -> Callable[..., Any]:
    """Return a function that builds a stock runner; equal arguments give equal weights and data."""

    def make(
        kind: str,
        recurrent: bool = True,
        models: dict[str, Any] | None = None,
        num_steps: int = NUM_STEPS,
        log_dir: Path | None = None,
        **options: Any,
    ) -> Any:
        if kind == "distillation":
            options = {"gradient_length": num_steps, **options}
        name = era.prefix + {"distillation": "TbpttDistillation", "ppo": "TbpttPPO"}[kind]
        cfg = {
            "num_steps_per_env": num_steps,
            "save_interval": 100,
            "algorithm": {"class_name": name, **options},
        }
        # A copy for each, because rsl_rl removes entries from the dicts, which the models share.
        for role, model in (models or era.models(kind, recurrent)).items():
            cfg[role] = copy.deepcopy(model)
        torch.manual_seed(0)
        runner = RUNNERS[kind](RecallEnv(NUM_ENVS, recall_length=3), cfg, log_dir and str(log_dir))
        if kind == "distillation" and "teacher_checkpoint" not in options:
            era.declare_teacher_loaded(runner.alg)
        runner.git_status_repos = []  # which takes seconds
        if hasattr(runner, "logger"):
            runner.logger.git_status_repos = []
        runner.disable_logs = log_dir is None  # 3.1.2 would write without a folder too
        return runner

    return make
