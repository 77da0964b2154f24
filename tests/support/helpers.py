"""Small models, storages and rollouts shared by the tests."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.models import CNNModel, MLPModel, RNNModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import inference_mode
from torch.nn.utils import parameters_to_vector

from rsl_tbptt.core.scan import CELLS
from rsl_tbptt.models import CNNRNNModel, RecurrentModel
from support.one_pass import ONE_PASS

OBS_DIM, STATE_DIM, ACTION_DIM = 5, 7, 2
OBS_GROUPS = {"student": ["policy"], "teacher": ["state"], "actor": ["policy"], "critic": ["state"]}
IMAGES = {"camera": (2, 6, 5), "depth": (1, 4, 4)}
"""Channels, height and width of the groups that a CNN sees."""
MODELS = ["mlp", "lstm", "gru", "cnn"]
"""rsl_rl's own, by their names here."""
MEMORIES = [name.lower() for name in CELLS]
"""Models with memory, named after their cell; rsl_rl's own for an LSTM and a GRU."""
if "if not self.obs_groups" in inspect.getsource(CNNModel.get_latent):
    MODELS.append("images")  # rsl_rl 5.0 crashes without any one-dimensional group

MEMORIES_THAT_SEE = [f"cnn-{kind}" for kind in MEMORIES]
"""Our own models with memory that see images."""
SEEING = ["cnn", "images", *MEMORIES_THAT_SEE]
"""Kinds of models that see images."""


class OwnForward(RNNModel):
    """A user's model with nothing but rsl_rl's interface, which has to run step by step."""

    def forward(self, obs: TensorDict, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return rsl_rl's own result."""
        return super().forward(obs, *args, **kwargs)


CNN = {"output_channels": [3, 2], "kernel_size": 3, "padding": "zeros", "stride": [2, 1]}


def make_obs(
    num_envs: int, generator: torch.Generator | None = None, images: bool = False
) -> TensorDict:
    """Return random observations with a "policy" and a "state" group, and images on request."""
    groups = {"policy": (OBS_DIM,), "state": (STATE_DIM,), **(IMAGES if images else {})}
    return TensorDict(
        {
            name: torch.randn(num_envs, *shape, generator=generator)
            for name, shape in groups.items()
        },
        batch_size=[num_envs],
    )


def obs_like(storage: RolloutStorage, generator: torch.Generator) -> TensorDict:
    """Return random observations of the groups that a storage has been made for."""
    return make_obs(storage.num_envs, generator, images="camera" in storage.observations)


def make_model(role: str, kind: str, num_envs: int, seed: int, **kwargs: Any) -> MLPModel:
    """Build a model for a role, of a kind in ``MODELS``, ``MEMORIES`` or ``SEEING``.

    A "stepwise" one has the weights of an "lstm", and its own forward pass.
    """
    sees_images = kind in SEEING
    obs = make_obs(num_envs, images=sees_images)
    groups = [] if kind == "images" else OBS_GROUPS[role]
    torch.manual_seed(seed)
    shared = {
        "obs": obs,
        "obs_groups": {role: [*groups, *IMAGES] if sees_images else groups},
        "obs_set": role,
        "output_dim": ACTION_DIM,
        "hidden_dims": [8],
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.3},
        **kwargs,
    }
    if shared["distribution_cfg"] is not None:  # rsl_rl before 5.5 takes entries out of it
        shared["distribution_cfg"] = dict(shared["distribution_cfg"])
    if kind == "mlp":
        return MLPModel(**shared)
    if kind in MEMORIES_THAT_SEE:
        options = {"rnn_type": kind.removeprefix("cnn-"), "rnn_hidden_dim": 6, "cnn_cfg": CNN}
        return CNNRNNModel(**options | shared)
    if sees_images:
        return CNNModel(**{"cnn_cfg": CNN, **shared})
    model: Any = {"stepwise": OwnForward}.get(kind, RNNModel if kind in MODELS else RecurrentModel)
    return model(rnn_type=kind.replace("stepwise", "lstm"), rnn_hidden_dim=6, **shared)


def make_distillation(
    algorithm: type[Distillation],
    num_steps: int,
    num_envs: int,
    student: str = "lstm",
    teacher: str = "mlp",
    student_kwargs: dict[str, Any] | None = None,
    device: str = "cpu",
    **options: Any,
) -> Any:
    """Build an algorithm with its models and storage; equal arguments give equal weights.

    By default ours passes once over each rollout, in one mini-batch, without a replay buffer.
    """
    if algorithm is not Distillation:
        options = ONE_PASS | options
    student_model = make_model("student", student, num_envs, seed=1, **(student_kwargs or {}))
    teacher_model = make_model("teacher", teacher, num_envs, seed=2)
    obs = make_obs(num_envs, images=not {*SEEING}.isdisjoint((student, teacher)))
    storage = RolloutStorage("distillation", num_envs, num_steps, obs, [ACTION_DIM], device)
    models = (student_model, teacher_model)
    algorithm_instance = algorithm(*models, storage, device=device, **options)
    algorithm_instance.train_mode()
    return algorithm_instance


def roll_out(
    algorithm: Any, seed: int, done_rate: float = 0.2, on_step: Callable[..., object] | None = None
) -> None:
    """Fill the storage as the runner does: act, step, process, in inference mode.

    PPO also gets rewards and time-outs. ``on_step`` may change a step, given its number, the
    observations, and PPO's rewards.
    """
    generator, device = torch.Generator().manual_seed(seed), algorithm.device
    num_envs, rewarded = algorithm.storage.num_envs, hasattr(algorithm, "actor")
    torch.manual_seed(seed)
    with inference_mode():
        for step in range(algorithm.storage.num_transitions_per_env):
            obs, extras = obs_like(algorithm.storage, generator), {}
            rewards = torch.zeros(num_envs)
            if rewarded:
                rewards = torch.randn(num_envs, generator=generator)
            if on_step is not None:
                on_step(step, obs, *([rewards] if rewarded else []))
            obs = obs.to(device)
            algorithm.act(obs)
            dones = torch.rand(num_envs, generator=generator) < done_rate
            if rewarded:
                late = torch.rand(num_envs, generator=generator) < 0.5
                extras["time_outs"] = (dones & late).to(device)
            algorithm.process_env_step(obs, rewards.to(device), dones.long().to(device), extras)
        if rewarded:
            obs = obs_like(algorithm.storage, generator).to(device)
        algorithm.compute_returns(obs)


def train(algorithm: Any, *seeds: int, **options: Any) -> dict[str, float]:
    """Roll out and update with each seed; return the metrics of the last update."""
    metrics: dict[str, float] = {}
    for seed in seeds:
        roll_out(algorithm, seed, **options)
        metrics = algorithm.update()
    return metrics


def hold_frames(period: int) -> Callable[[int, TensorDict], None]:
    """Make environment n repeat each image for some steps, starting at any of them."""
    last: dict[str, torch.Tensor] = {}

    def on_step(step: int, obs: TensorDict) -> None:
        held = (torch.arange(len(obs)) + step) % period > 0
        for group in IMAGES:
            if step > 0:
                obs[group][held] = last[group][held]
            last[group] = obs[group].clone()

    return on_step


def parameters_of(algorithm: Any) -> torch.Tensor:
    """Return the parameters of the student, or of actor and critic, as one vector."""
    models = [getattr(algorithm, role, None) for role in ("student", "actor", "critic")]
    vectors = [parameters_to_vector(model.parameters()) for model in models if model is not None]
    return torch.cat(vectors).detach().clone()


def absolute_error(actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Stand in for a user's loss that is given by its qualified name."""
    return (actions - labels).abs()


def make_ppo(
    algorithm: type[PPO],
    num_steps: int,
    num_envs: int,
    actor: str = "lstm",
    critic: str = "lstm",
    actor_kwargs: dict[str, Any] | None = None,
    device: str = "cpu",
    **options: Any,
) -> Any:
    """Build a PPO with its models and storage; equal arguments give equal weights.

    A "sharing" critic has the actor's kind and shares its encoders.
    """
    actor_model = make_model("actor", actor, num_envs, seed=1, **(actor_kwargs or {}))
    critic_kwargs: dict[str, Any] = {"output_dim": 1, "distribution_cfg": None}
    if critic == "sharing":
        critic, critic_kwargs["cnns"] = actor, actor_model.cnns
    critic_model = make_model("critic", critic, num_envs, seed=2, **critic_kwargs)
    obs = make_obs(num_envs, images=not {*SEEING}.isdisjoint((actor, critic)))
    storage = RolloutStorage("rl", num_envs, num_steps, obs, [ACTION_DIM], device)
    models = (actor_model, critic_model)
    algorithm_instance = algorithm(*models, storage, device=device, **options)
    algorithm_instance.train_mode()
    return algorithm_instance


def rnd_cfg(**options: Any) -> dict[str, Any]:
    """Return a new config of RND, since rsl_rl 5.0 removes entries, without normalisation."""
    return {
        "num_states": STATE_DIM,
        "obs_groups": {"rnd_state": ["state"], "actor": ["policy"], "critic": ["state"]},
        "num_outputs": 3,
        "predictor_hidden_dims": [8],
        "target_hidden_dims": [8],
        "weight": 0.5,
        "learning_rate": 1e-2,
        "state_normalization": False,
        "reward_normalization": False,
        **options,
    }


def numbered(num_steps: int, num_envs: int) -> torch.Tensor:
    """Return the number of each sample, shape (T, N)."""
    return torch.arange(num_steps * num_envs).view(num_steps, num_envs)


def write_drawn_bundle(
    folder: Any,
    policy: Any,
    groups: dict[str, torch.Tensor],
    num_steps: int,
    robot: dict[str, Any] | None = None,
    heads: Mapping[str, torch.nn.Module] | None = None,
    fault: Callable[[Any], None] | None = None,
    **options: Any,
) -> Any:
    """Write the bundle of a policy, and return its steps on drawn observations.

    ``fault`` changes what is exported but not the steps.
    """
    from rsl_tbptt.tools.robot.export import write_bundle
    from rsl_tbptt.tools.robot.golden import draw

    steps = draw(policy, heads or {}, groups, num_steps, seed=1)
    if policy.is_recurrent:
        policy.reset()
    if fault is not None:
        fault(policy)
    about = {"checkpoint": "model_5.pt", "iteration": 5, "golden": "drawn", "simulation": None}
    write_bundle(folder, policy, steps, heads or {}, robot or {}, about, **options)
    return steps
