"""One case of the benchmark: random robots, a network, and an algorithm of either library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.bench.camera import CAMERA, CNN, IMAGE_SIZE, Camera, SteppedCNNRNNModel
from rsl_tbptt.core.scan.layers import tf32_in_layers
from rsl_tbptt.models import CNNRNNModel

OBS_DIM, ACTION_DIM = 48, 12  # a quadruped's proprioception and its joints
HIDDEN_DIMS = [256, 128, 64]
TRAINED = {"ppo": ("actor", "critic"), "distillation": ("student",)}
"""By algorithm: the models that are trained."""
Library = Literal["rsl_tbptt", "rsl_rl"]
CLASSES: dict[tuple[str, str], Any] = {
    ("ppo", "rsl_tbptt"): TbpttPPO,
    ("ppo", "rsl_rl"): PPO,
    ("distillation", "rsl_tbptt"): TbpttDistillation,
    ("distillation", "rsl_rl"): Distillation,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured: updates on rollouts of random observations."""

    algorithm: Literal["ppo", "distillation"]
    num_envs: int
    num_steps: int
    gradient_length: int
    """rsl_rl's PPO cannot truncate: it always takes the whole rollout."""
    num_mini_batches: int = 4
    """Of PPO; distillation has none."""
    num_learning_epochs: int = 1
    rnn_type: str = "lstm"
    rnn_hidden_dim: int = 256
    rnn_num_layers: int = 1
    camera_period: int | None = None
    """Steps for which a camera shows each frame, of distillation. None is a robot without one."""
    image_size: Sequence[int] = field(default=IMAGE_SIZE, hash=False)
    """Height and width of the camera's images, in pixels."""
    num_actions: int = ACTION_DIM
    obs_dims: Mapping[str, int] = field(default_factory=lambda: {"policy": OBS_DIM}, hash=False)
    """Widths of the observation groups, by name."""
    obs_groups: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    """What a model sees, by its role; one that is not named sees ``policy``."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Further options of rsl_rl's models, by role. A teacher with ``rnn_type`` has a memory."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further options of the algorithm of either library."""
    done_rate: float = 0.05
    device: str = "cpu"
    use_mixed_precision: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of our algorithm alone, by name; the libraries then compute different things."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            ValueError: If a number is out of its range.
        """
        counts = ("num_steps", "gradient_length", "num_mini_batches", "num_learning_epochs")
        for name in ("num_envs", *counts, "rnn_hidden_dim", "rnn_num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1.")
        if self.camera_period is not None and self.camera_period < 1:
            raise ValueError(f"camera_period is {self.camera_period}, expected at least 1 or None.")
        if self.camera_period is not None and self.algorithm == "ppo":
            raise ValueError(
                f"camera_period is {self.camera_period}, expected None with ppo: only distillation"
                " has a model with a camera to compare with."
            )
        if not 0 <= self.done_rate <= 1:
            raise ValueError(f"done_rate is {self.done_rate}, expected a share from 0 to 1.")
        per_mini_batch, left = divmod(self.num_envs, self.num_mini_batches)
        if self.algorithm == "ppo" and (left or per_mini_batch < 2):
            raise ValueError(
                f"num_envs is {self.num_envs}, expected a multiple of num_mini_batches"
                f" ({self.num_mini_batches}), at least twice that: rsl_rl's PPO leaves out the"
                " rest, and computes something else with one environment in a mini-batch."
            )

    @property
    def precision(self) -> str:
        """Type of the operands of matrix products."""
        return "bfloat16" if self.use_mixed_precision else "float32"

    @property
    def batches(self) -> int:
        """Mini-batches of an epoch, 1 in distillation."""
        return self.num_mini_batches if self.algorithm == "ppo" else 1


def check_device(device: str) -> None:
    """See that a device is there.

    Args:
        device: ``cpu`` or ``cuda:<index>``.

    Raises:
        ValueError: If it is neither, or this machine has none of that index.
    """
    num_gpus = torch.cuda.device_count()
    if device not in ("cpu", *(f"cuda:{index}" for index in range(num_gpus))):
        raise ValueError(
            f"device is {device!r}, expected cpu or cuda:<index> of a GPU: torch finds {num_gpus}."
        )


def build(case: Case, library: Library, **options: Any) -> Any:
    """Build an algorithm with its models and storage; equal cases give equal weights.

    Args:
        case: The case.
        library: Whose algorithm.
        **options: Further options of the algorithm.

    Returns:
        The algorithm.
    """
    torch.manual_seed(0)
    obs = Robots(case).observe()
    own: dict[str, Any] = {"num_learning_epochs": case.num_learning_epochs}
    if case.algorithm == "ppo":
        own["num_mini_batches"] = case.num_mini_batches
    if case.algorithm == "distillation" or library == "rsl_tbptt":
        own["gradient_length"] = case.gradient_length
    if library == "rsl_tbptt":
        alone = {"num_mini_batches": 1, "buffer_rollouts": 0}
        own |= {**(alone if case.algorithm == "distillation" else {}), **case.options}
    kind = "rl" if case.algorithm == "ppo" else case.algorithm
    sizes = (case.num_envs, case.num_steps)
    storage = RolloutStorage(kind, *sizes, obs, [case.num_actions], case.device)
    algorithm = CLASSES[case.algorithm, library](
        *(model.to(case.device) for model in _models(case, library, obs)),
        storage,
        device=case.device,
        use_mixed_precision=case.use_mixed_precision,
        **{**own, **case.settings, **options},
    )
    algorithm.train_mode()
    return algorithm


def _models(case: Case, library: Library, obs: TensorDict) -> list[MLPModel]:
    """Build the models that are trained, and for distillation a teacher, by default an MLP."""
    roles = (*TRAINED[case.algorithm], *(["teacher"] if case.algorithm == "distillation" else []))
    groups = {role: [*case.obs_groups.get(role, ["policy"])] for role in roles}
    models: list[MLPModel] = []
    for role in roles:
        options = _options(case, role)
        model_class: type[MLPModel] = RNNModel if "rnn_type" in options else MLPModel
        if role == "student" and case.camera_period is not None:
            model_class = CNNRNNModel if library == "rsl_tbptt" else SteppedCNNRNNModel
            groups[role].append(CAMERA)
            options["cnn_cfg"] = dict(CNN)
        outputs = 1 if role == "critic" else case.num_actions
        models.append(model_class(obs, groups, role, outputs, **options))
    return models


def _options(case: Case, role: str) -> dict[str, Any]:
    """Return the options of a model, fresh ones, as rsl_rl changes what it is given."""
    options: dict[str, Any] = {"hidden_dims": HIDDEN_DIMS}
    if role != "teacher":
        options |= {
            "obs_normalization": True,
            "rnn_type": case.rnn_type,
            "rnn_hidden_dim": case.rnn_hidden_dim,
            "rnn_num_layers": case.rnn_num_layers,
        }
        noise = {"class_name": "GaussianDistribution", "init_std": 1.0}
        options["distribution_cfg"] = None if role == "critic" else noise
    return deepcopy(options | dict(case.models.get(role, {})))


def fill(algorithm: Any, case: Case, seed: int) -> None:
    """Roll out random robots; equal seeds give equal observations, rewards and dones."""
    torch.manual_seed(seed)  # of the actions
    generator = torch.Generator().manual_seed(seed)
    robots = Robots(case, generator)
    with torch.inference_mode():
        obs = robots.observe()
        for _ in range(case.num_steps):
            algorithm.act(obs)
            rewards = torch.randn(case.num_envs, generator=generator)
            dones = torch.rand(case.num_envs, generator=generator) < case.done_rate
            obs = robots.observe()
            algorithm.process_env_step(
                obs, rewards.to(case.device), dones.long().to(case.device), {}
            )
        algorithm.compute_returns(obs)


class Robots:
    """Random observations, step by step."""

    def __init__(self, case: Case, generator: torch.Generator | None = None) -> None:
        """Begin before the first step.

        Args:
            case: How many robots, and what they observe.
            generator: Of the random numbers.
        """
        self._case, self._generator = case, generator
        period = case.camera_period
        self._camera = Camera(case.num_envs, period, case.image_size) if period else None

    def observe(self) -> TensorDict:
        """Return what all robots observe at the next step, batch size (N,)."""
        num_envs, device = self._case.num_envs, self._case.device
        groups = {
            name: torch.randn(num_envs, width, generator=self._generator)
            for name, width in self._case.obs_dims.items()
        }
        if self._camera:
            groups[CAMERA] = self._camera.see(self._generator)
        return TensorDict(groups, batch_size=[num_envs]).to(device)


def title(case: Case) -> str:
    """Say what is measured."""
    algorithm = "PPO" if case.algorithm == "ppo" else case.algorithm
    options = "".join(f", {name}={value}" for name, value in case.options.items())
    layers = f"{case.rnn_num_layers} layers of " if case.rnn_num_layers > 1 else ""
    cnn = "" if case.camera_period is None else "CNN-"
    camera = "" if case.camera_period is None else f", camera period {case.camera_period}"
    precision = case.precision
    if case.device != "cpu" and not case.use_mixed_precision:
        of_memory = "TF32" if tf32_in_layers() else "full precision"
        precision += f" (memory of both libraries in {of_memory})"
    return (
        f"{algorithm}, {layers}{cnn}{case.rnn_type.upper()}-{case.rnn_hidden_dim},"
        f" {precision}, N={case.num_envs}, T={case.num_steps}, K={case.gradient_length},"
        f" done rate {case.done_rate:g}{camera}{options}"
    )
