"""Teachers of different groups and architectures, the files they are read from, and rollouts."""

import copy
from pathlib import Path
from typing import Any

import torch
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.compat.versions import resolve_callable
from rsl_tbptt.models import SelectedTeachers
from support.helpers import ACTION_DIM, CNN, IMAGES, OBS_DIM, STATE_DIM, make_model
from support.one_pass import ONE_PASS

T, N = 6, 5

GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.3}
SHARED = {"hidden_dims": [8], "distribution_cfg": GAUSSIAN}
RNN = {"class_name": "RNNModel", "rnn_hidden_dim": 6, **SHARED}
TEACHERS: dict[str, dict[str, Any]] = {
    "walk": {
        "cfg": {"class_name": "MLPModel", "obs_normalization": True, **SHARED},
        "obs_groups": ["state"],
    },
    "trot": {"cfg": {"rnn_type": "lstm", **RNN}, "obs_groups": ["policy"]},
    "see": {"cfg": {"class_name": "CNNModel", "cnn_cfg": CNN, **SHARED}},  # the set's groups
    "hop": {"cfg": {"rnn_type": "gru", **RNN}, "obs_groups": ["state", "policy"]},
}
GROUPS = {"teacher": ["state", *IMAGES]}
MEMORYLESS = ("walk", "see")


def random_rollout(
    seed: int, num_teachers: int, num_steps: int = T, num_envs: int = N
) -> tuple[TensorDict, torch.Tensor]:
    """Return observations (T, N) whose teachers change within episodes, and dones (T, N)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"policy": (OBS_DIM,), "state": (STATE_DIM,), **IMAGES}
    size = (num_steps, num_envs)
    obs: dict[str, Any] = {
        name: torch.randn(*size, *shape, generator=generator) for name, shape in shapes.items()
    }
    skill = torch.randint(num_teachers, (*size, 1), generator=generator)
    obs["skill"] = skill.to(torch.get_default_dtype())
    dones = torch.rand(size, generator=generator) < 0.2
    return TensorDict(obs, batch_size=size), dones


def save_teachers(folder: Path, names: Any = TEACHERS) -> dict[str, Any]:
    """Write a PPO checkpoint of each teacher; return the config of all of them."""
    config = {}
    for number, name in enumerate(names):
        teacher = build_alone(name, seed=10 + number)
        path = folder / f"{name}.pt"
        torch.save({"actor_state_dict": teacher.state_dict(), "iter": 0, "infos": None}, path)
        config[name] = {**TEACHERS[name], "checkpoint": str(path)}
    return config


def build_alone(name: str, seed: int = 0) -> MLPModel:
    """Build one of the teachers as its own training does."""
    obs, _ = random_rollout(0, 1)
    options = copy.deepcopy(TEACHERS[name]["cfg"])  # models of old releases remove entries from it
    groups = TEACHERS[name].get("obs_groups", GROUPS["teacher"])
    torch.manual_seed(seed)
    model_class = resolve_callable(options.pop("class_name"))
    model: Any = model_class(obs[0], {"actor": list(groups)}, "actor", ACTION_DIM, **options)
    if options.get("obs_normalization"):
        model.obs_normalizer.update(3.0 * obs["state"].flatten(0, 1) + 1.0)
    return model.eval()


def load_alone(config: dict[str, Any]) -> dict[str, MLPModel]:
    """Return the teachers of a config, each loaded separately from its file."""
    models = {name: build_alone(name) for name in config}
    for name, model in models.items():
        checkpoint = torch.load(config[name]["checkpoint"], weights_only=True)
        model.load_state_dict(checkpoint["actor_state_dict"])
    return models


def select(config: dict[str, Any], selector: Any = "skill", num_envs: int = N) -> SelectedTeachers:
    """Build the teachers of a config as rsl_rl does."""
    obs, _ = random_rollout(0, max(1, len(config)), num_envs=num_envs)
    return SelectedTeachers(obs[0], GROUPS, "teacher", ACTION_DIM, selector, config)


def make(
    config: dict[str, Any],
    student: str = "lstm",
    num_envs: int = N,
    algorithm: Any = TbpttDistillation,
    selector: Any = "skill",
    **options: Any,
) -> Any:
    """Build an algorithm; by default ours passes once over a rollout."""
    if algorithm is TbpttDistillation:
        options = {"gradient_length": 3, "update_length": T, **ONE_PASS, **options}
    obs, _ = random_rollout(0, len(config), num_envs=num_envs)
    teachers: Any = select(config, selector, num_envs)
    built = algorithm(
        make_model("student", student, num_envs, seed=1),
        teachers,
        RolloutStorage("distillation", num_envs, T, obs[0], [ACTION_DIM], "cpu"),
        **options,
    )
    built.train_mode()
    return built


def roll_out(algorithm: Any, obs: TensorDict, dones: torch.Tensor) -> torch.Tensor:
    """Give an algorithm a rollout; return the executed actions, (T, N, A)."""
    executed = []
    with torch.inference_mode():
        for step in range(len(dones)):
            executed.append(algorithm.act(obs[step].clone()))
            rewards = torch.zeros(dones.shape[1])
            algorithm.process_env_step(obs[step], rewards, dones[step].long(), {})
    return torch.stack(executed)


class LabelledByHand:
    """Labels each sample by its own teacher, run separately; states continue over rollouts."""

    def __init__(self, models: dict[str, MLPModel]) -> None:
        self._models = models

    @torch.no_grad()
    def __call__(self, obs: TensorDict, dones: torch.Tensor) -> torch.Tensor:
        steps = []
        for step in range(len(dones)):
            labels = {name: model(obs[step]) for name, model in self._models.items()}
            for model in self._models.values():
                model.reset(dones[step].long())
            names = [list(labels)[int(number)] for number in obs["skill"][step].flatten()]
            steps.append(torch.stack([labels[name][env] for env, name in enumerate(names)]))
        return torch.stack(steps)


def by_sign(obs: TensorDict) -> torch.Tensor:
    """Stand in for a user's selector that is given by its qualified name."""
    return obs["policy"][:, 0] > 0
