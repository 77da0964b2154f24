"""Compare time and memory of one update with the installed rsl_rl's.

Both libraries train equal networks on equal rollouts. Times are only measured if both compute the
same.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

import torch
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch.nn.utils import parameters_to_vector
from torch.utils._pytree import tree_map

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era
from rsl_tbptt.core.scan.products import products_as_in_layers
from rsl_tbptt.installation import versions
from rsl_tbptt.models import CNNRNNModel

OBS_DIM, ACTION_DIM = 48, 12  # a quadruped's proprioception and its joints
HIDDEN_DIMS = [256, 128, 64]
TRAINED = {"ppo": ("actor", "critic"), "distillation": ("student",)}
"""The models that an algorithm trains."""
Library = Literal["rsl_tbptt", "rsl_rl"]
LIBRARIES: tuple[Library, Library] = ("rsl_tbptt", "rsl_rl")
CLASSES: dict[str, dict[str, Any]] = {
    "ppo": {"rsl_tbptt": TbpttPPO, "rsl_rl": PPO},
    "distillation": {"rsl_tbptt": TbpttDistillation, "rsl_rl": Distillation},
}
MEMORY = ("rnn_type", "rnn_hidden_dim", "rnn_num_layers")
"""Options of the recurrent layers, the same in all models."""
CNN = {"output_channels": [16, 32, 32], "kernel_size": [5, 3, 3], "stride": 2, "activation": "elu"}
"""Options of rsl_rl's CNN."""
IMAGE_SIZE = (48, 64)
"""Height and width of the depth images, in pixels."""
CHOICES = {"algorithm": [*CLASSES], "rnn_type": ["lstm", "gru"]}
TOLERANCE = 1e-4
"""Largest share of an update's change that may differ: rounding in float32 reaches about 1e-5, a
wrong loss 1e-2."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison: networks, lengths and random robots, which may have a camera."""

    algorithm: Literal["ppo", "distillation"] = "ppo"
    num_envs: int = 1024
    num_steps: int = 24
    gradient_length: int = 12
    """rsl_rl's PPO cannot truncate: it always takes the whole rollout."""
    num_mini_batches: int = 4
    """PPO only: rsl_rl's distillation has none."""
    num_learning_epochs: int = 1
    rnn_type: Literal["lstm", "gru"] | None = "lstm"
    """None takes rsl_rl's models without memory: an MLP, or for a camera a CNN and an MLP."""
    rnn_hidden_dim: int = 256
    rnn_num_layers: int = 1
    done_rate: float = 0.05
    device: str = "cpu"
    use_mixed_precision: bool = False
    tf32: bool = False
    """Whether a GPU rounds the operands of all float32 products to TF32, as Isaac Lab and mjlab
    train. Otherwise only those of recurrent layers are rounded, torch's default."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Other options of the algorithm in both libraries."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Options of our algorithm alone. With them the libraries compute different things."""
    num_actions: int = field(default_factory=lambda: ACTION_DIM)
    obs_dims: Mapping[str, int] = field(default_factory=lambda: {"policy": OBS_DIM}, hash=False)
    """Widths of the observation groups. A critic sees ``critic`` if it is one of them."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Other options of rsl_rl's models, by role. A teacher with ``rnn_type`` is recurrent."""
    camera_period: int | None = None
    """Steps for which the student's depth camera shows each frame. None means no camera."""
    frame_dtype: Literal["float32", "uint8"] = "float32"
    """Type of the camera's frames. rsl_rl's CNN cannot read bytes."""

    def __post_init__(self) -> None:
        """Check that the case can be measured.

        Raises:
            ValueError: If a number is out of its range, or this machine lacks the device.
        """
        for option in fields(self):
            value = getattr(self, option.name)
            if type(value) is int and value < 1:
                raise ValueError(f"{option.name} is {value}, expected at least 1.")
        if not 0 <= self.done_rate <= 1:
            raise ValueError(f"done_rate is {self.done_rate}, expected a share from 0 to 1.")
        per_mini_batch, left = divmod(self.num_envs, self.batches)
        if self.algorithm == "ppo" and (left or per_mini_batch < 2):
            raise ValueError(
                f"num_envs is {self.num_envs}, expected a multiple of num_mini_batches"
                f" ({self.num_mini_batches}), at least twice that: rsl_rl's PPO leaves out the"
                " rest, and computes something else with one environment in a mini-batch."
            )
        num_gpus = torch.cuda.device_count()
        if self.device not in ("cpu", *(f"cuda:{index}" for index in range(num_gpus))):
            raise ValueError(
                f"device is {self.device!r}, expected cpu or cuda:<index> of a GPU: torch finds"
                f" {num_gpus}."
            )

    @property
    def batches(self) -> int:
        """Mini-batches of an epoch, 1 in distillation."""
        return self.num_mini_batches if self.algorithm == "ppo" else 1

    @property
    def precision(self) -> str:
        """Precision of the operands of matrix products."""
        if self.use_mixed_precision:
            return "bfloat16"
        return "TF32" if self.tf32 and self.device != "cpu" else "float32"

    def observations(self, generator: torch.Generator) -> Iterator[TensorDict]:
        """Yield random observations; environments get new frames at different steps."""
        step, frames = 0, torch.zeros(())
        phases = torch.arange(self.num_envs).view(-1, 1, 1, 1)
        while True:
            groups = {
                name: torch.randn(self.num_envs, width, generator=generator)
                for name, width in self.obs_dims.items()
            }
            if self.camera_period:
                fresh = self._new_frames(generator)
                is_new = (phases + step) % self.camera_period == 0
                groups["camera"] = frames = torch.where(is_new, fresh, frames) if step else fresh
            step += 1
            yield TensorDict(groups, [self.num_envs]).to(self.device)

    def _new_frames(self, generator: torch.Generator) -> torch.Tensor:
        """Return a random frame for each environment. Shape: (N, 1, height, width)."""
        shape = (self.num_envs, 1, *IMAGE_SIZE)
        if self.frame_dtype == "uint8":
            return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return torch.randn(shape, generator=generator)

    def model(self, role: str, library: Library, obs: TensorDict) -> Any:
        """Build one model."""
        from rsl_rl.models import CNNModel, MLPModel, RNNModel  # missing in rsl_rl 3.1

        from scripts.benchmark.stepped import SteppedCNNRNNModel

        options: dict[str, Any] = {"hidden_dims": HIDDEN_DIMS}
        groups = ["critic" if role in self.obs_dims else "policy"]
        if role != "teacher":
            options["obs_normalization"] = True
            options |= {name: getattr(self, name) for name in MEMORY if self.rnn_type}
        if role in ("actor", "student"):
            options["distribution_cfg"] = {"class_name": "GaussianDistribution", "init_std": 1.0}
        options |= deepcopy(dict(self.models.get(role, {})))  # rsl_rl changes its arguments
        kind: Any = RNNModel if "rnn_type" in options else MLPModel
        if role == "student" and self.camera_period:
            options["cnn_cfg"], groups = dict(CNN), [*groups, "camera"]
            with_memory = CNNRNNModel if library == "rsl_tbptt" else SteppedCNNRNNModel
            kind = with_memory if self.rnn_type else CNNModel
            if self.frame_dtype == "uint8":
                options["image_scale"] = 1 / 255
        outputs = 1 if role == "critic" else self.num_actions
        return kind(obs, {role: groups}, role, outputs, **options)

    def __str__(self) -> str:
        """Describe the case in one line."""
        name = "PPO" if self.algorithm == "ppo" else self.algorithm
        layers = f"{self.rnn_num_layers} layers of " if self.rnn_num_layers > 1 else ""
        memory = f"{layers}{self.rnn_type.upper()}-{self.rnn_hidden_dim}, " if self.rnn_type else ""
        epochs = f", {self.num_learning_epochs} epochs" if self.num_learning_epochs > 1 else ""
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        frames = f", CNN, {self.frame_dtype} frames, camera period {self.camera_period}"
        camera = frames if self.camera_period else ""
        return (
            f"{name}, {memory}{self.precision},"
            f" N={self.num_envs}, T={self.num_steps}, K={self.gradient_length},"
            f" done rate {self.done_rate:g}{epochs}{options}{camera}"
        )


def build(case: Case, library: Library, **options: Any) -> Any:
    """Build an algorithm with its models and storage; equal cases give equal weights."""
    torch.manual_seed(0)
    obs = next(case.observations(torch.Generator()))
    own: dict[str, Any] = {"num_learning_epochs": case.num_learning_epochs}
    if case.algorithm == "ppo":
        own["num_mini_batches"] = case.num_mini_batches
    if case.algorithm == "distillation" or library == "rsl_tbptt":
        own["gradient_length"] = case.gradient_length
    if library == "rsl_tbptt":
        alone = {"num_mini_batches": 1, "buffer_rollouts": 0, "held_out_envs": 0}
        own |= {**(alone if case.algorithm == "distillation" else {}), **case.options}
    roles = TRAINED[case.algorithm] + (("teacher",) if case.algorithm == "distillation" else ())
    models = [case.model(role, library, obs).to(case.device) for role in roles]
    kind = "rl" if case.algorithm == "ppo" else case.algorithm
    sizes = (case.num_envs, case.num_steps)
    storage = RolloutStorage(kind, *sizes, obs, [case.num_actions], case.device)
    # rsl_rl has this option since 5.5.
    mixed = {"use_mixed_precision": True} if case.use_mixed_precision else {}
    algorithm = CLASSES[case.algorithm][library](
        *models, storage, device=case.device, **{**own, **mixed, **case.settings, **options}
    )
    algorithm.train_mode()
    return algorithm


def fill(algorithm: Any, case: Case, seed: int) -> None:
    """Roll out random robots; equal seeds give equal observations, rewards and dones."""
    torch.manual_seed(seed)  # for the actions
    generator = torch.Generator().manual_seed(seed)
    robots = case.observations(generator)
    with torch.inference_mode():
        obs = next(robots)
        for _ in range(case.num_steps):
            algorithm.act(obs)
            rewards = torch.randn(case.num_envs, generator=generator).to(case.device)
            dones = torch.rand(case.num_envs, generator=generator) < case.done_rate
            obs = next(robots)
            algorithm.process_env_step(obs, rewards, dones.long().to(case.device), {})
        algorithm.compute_returns(obs)


def check_equal(case: Case) -> None:
    """Check that one update of either library leaves equal parameters.

    The check runs few environments over all steps, and all environments over few steps. It uses
    plain gradient descent, because Adam's first step hides the gradient's size. It runs in full
    float32, where only a wrong computation differs by more than ``TOLERANCE``, without the options
    of our algorithm alone, and PPO with the whole rollout, because rsl_rl's PPO cannot truncate.

    Raises:
        ValueError: If the parameters differ.
    """
    # PPO's mini-batches need equal numbers of environments, two or more each.
    few_envs = min(case.batches * max(32 // case.batches, 2), case.num_envs)
    few_steps = min(4, case.num_steps)
    for num_envs, num_steps in ((few_envs, case.num_steps), (case.num_envs, few_steps)):
        length = num_steps if case.algorithm == "ppo" else min(case.gradient_length, num_steps)
        # Two epochs also check that the second starts from the states and dones of the first. In
        # rsl_rl's distillation it instead continues a window that the first left unfinished.
        most_epochs = 1 if num_steps % length else 2
        small = replace(
            case,
            num_envs=num_envs,
            num_steps=num_steps,
            gradient_length=length,
            num_learning_epochs=min(most_epochs, case.num_learning_epochs),
            use_mixed_precision=False,
            tf32=False,
            options={},
        )
        difference = _difference(small)
        if not difference < TOLERANCE:
            raise ValueError(
                f"The parameters' change by one update differs by {difference:.1e} from rsl_rl's"
                f" for {small}, expected less than {TOLERANCE:.0e}: times of different computations"
                " are not compared."
            )


@cache
def _difference(case: Case) -> float:
    """Return how much the libraries' changes of the parameters differ, as a share of the change."""
    plain: dict[str, object] = {"optimizer": "sgd", "learning_rate": 1e-2, "max_grad_norm": 1.0}
    as_rsl_rl = {"loss_reduction": "sum", "tail": "drop"}
    if case.algorithm == "ppo":
        plain["schedule"] = "fixed"
        as_rsl_rl = {"shuffle_envs": False}
    changes = []
    # By default cuDNN rounds the operands of an LSTM's products to TF32, which torch.mm does not.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for library in LIBRARIES:
            extra = as_rsl_rl if library == "rsl_tbptt" else {}
            algorithm = build(case, library, **plain, **extra)
            for role in TRAINED[case.algorithm]:
                # Before 5.5, rsl_rl updates normalisers in every step, not after the update.
                getattr(algorithm, role).obs_normalizer.eval()
            groups = algorithm.optimizer.param_groups
            parameters = [p for group in groups for p in group["params"]]
            before = parameters_to_vector(parameters).detach().clone()
            fill(algorithm, case, seed=0)
            algorithm.update()
            changes.append(parameters_to_vector(parameters).detach() - before)
    return ((changes[0] - changes[1]).norm() / changes[1].norm()).item()


def alternate(contestants: Sequence[tuple[Library, Case]], num_updates: int) -> list[list[float]]:
    """Time updates of several algorithms in turn, after ``num_warm_ups`` updates of each.

    Returns:
        Seconds of each update, one list per contestant.
    """
    algorithms = [build(case, library) for library, case in contestants]
    seconds: list[list[float]] = [[] for _ in contestants]
    before = num_warm_ups(contestants[0][1].device)
    for seed in range(before + num_updates):
        for algorithm, (_, case), taken in zip(algorithms, contestants, seconds, strict=True):
            with products_in(case.precision):
                fill(algorithm, case, seed)
                taken.append(seconds_of(algorithm.update, case.device))
            if case.algorithm == "distillation" and case.use_mixed_precision:
                # rsl_rl leaves the state in bfloat16, and its next rollout fails with that.
                state = tree_map(torch.Tensor.float, algorithm.student.get_hidden_state())
                algorithm.student.reset(hidden_state=state)
    return [taken[before:] for taken in seconds]


def products_in(precision: str) -> contextlib.AbstractContextManager[None]:
    """Let a GPU's float32 products round their operands to TF32 meanwhile, if that is asked for."""
    return products_as_in_layers() if precision == "TF32" else contextlib.nullcontext()


def num_warm_ups(device: str) -> int:
    """Return the updates before the timed ones.

    On a GPU optimiser steps are recorded after a few of the same shape. An update may have a single
    step, and the second one has another shape if there is a replay buffer.
    """
    return 1 if device == "cpu" else 4


def seconds_of(call: Callable[[], object], device: str) -> float:
    """Time a call; a GPU is synchronised before and after."""

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    start = now()
    call()
    return now() - start


def add_case_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a case, for any command that measures one."""
    for option in fields(Case):
        name, default = f"--{option.name.replace('_', '-')}", option.default
        if default is False:
            parser.add_argument(name, action="store_true")
        elif isinstance(default, str | int | float):
            choices, said = CHOICES.get(option.name), f"default: {default}"
            parser.add_argument(
                name, type=type(default), default=default, choices=choices, help=said
            )


def case_from(args: argparse.Namespace) -> Case:
    """Build the case of a command line.

    Raises:
        ImportError: If rsl_rl is 3.1.2, whose algorithms take another kind of model.
        ValueError: If an option is wrong.
    """
    if rsl_rl_era() != MODELS_ERA:
        raise ImportError(
            f"rsl-rl-lib is {versions()['rsl-rl-lib']}, expected 5.0.1 to 5.5: the benchmark builds"
            " the separate models of these releases."
        )
    names = {option.name for option in fields(Case)}
    return Case(**{name: value for name, value in vars(args).items() if name in names})


def spread(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the lowest, the median and the highest of the pairs' ratios: their time over ours."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return min(ratios), statistics.median(ratios), max(ratios)


def milliseconds(seconds: float) -> str:
    """Write a time with three digits or more."""
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f} ms"
