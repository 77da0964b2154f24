"""Teachers of different groups and architectures, and the files they are read from."""

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
from support.helpers import ACTION_DIM, CNN, IMAGES, make_model, make_obs
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


def first_obs(num_envs: int = N) -> TensorDict:
    """Return observations of all groups; "skill" selects the first teacher."""
    obs = make_obs(num_envs, torch.Generator().manual_seed(0), images=True)
    obs["skill"] = torch.zeros(num_envs, 1)
    return obs


def save_teachers(folder: Path, names: Any = TEACHERS) -> dict[str, Any]:
    """Write a PPO checkpoint of each teacher; return the config of all of them."""
    config = {}
    for number, name in enumerate(names):
        teacher = build_alone(name, seed=10 + number)
        path = folder / f"{name}.pt"
        torch.save({"actor_state_dict": teacher.state_dict(), "iter": 0, "infos": None}, path)
        config[name] = {**TEACHERS[name], "checkpoint": str(path)}
    return config


def build_alone(name: str, seed: int) -> MLPModel:
    """Build one of the teachers as its own training does."""
    obs = first_obs()
    options = copy.deepcopy(TEACHERS[name]["cfg"])  # models of old releases remove entries from it
    groups = TEACHERS[name].get("obs_groups", GROUPS["teacher"])
    torch.manual_seed(seed)
    model_class = resolve_callable(options.pop("class_name"))
    model: Any = model_class(obs, {"actor": list(groups)}, "actor", ACTION_DIM, **options)
    if options.get("obs_normalization"):
        model.obs_normalizer.update(3.0 * obs["state"] + 1.0)
    return model.eval()


def select(config: dict[str, Any], selector: Any = "skill", num_envs: int = N) -> SelectedTeachers:
    """Build the teachers of a config as rsl_rl does."""
    return SelectedTeachers(first_obs(num_envs), GROUPS, "teacher", ACTION_DIM, selector, config)


def make(
    config: dict[str, Any],
    selector: Any = "skill",
    algorithm: Any = TbpttDistillation,
    **options: Any,
) -> Any:
    """Build an algorithm; by default ours passes once over a rollout."""
    if algorithm is TbpttDistillation:
        options = {"update_length": T, **ONE_PASS, **options}
    teachers: Any = select(config, selector)
    student = make_model("student", "lstm", N, seed=1)
    storage = RolloutStorage("distillation", N, T, first_obs(), [ACTION_DIM], "cpu")
    built = algorithm(student, teachers, storage, gradient_length=3, **options)
    built.train_mode()
    return built


def by_sign(obs: TensorDict) -> torch.Tensor:
    """Stand in for a user's selector that is given by its qualified name."""
    return obs["policy"][:, 0] > 0
