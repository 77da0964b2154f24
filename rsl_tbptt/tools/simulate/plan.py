"""Forecast the memory of updates for several numbers of environments, before anything is trained.

A few real environments of the task run for one rollout. Their steps are repeated for as many
environments as asked for, so the algorithm is built and filled as in training, and its own
``memory_plan()`` is asked. The simulator's memory is unknown.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.core.memory import MemoryPlan
from rsl_tbptt.files import AGENT, ENV, read_config
from rsl_tbptt.installation import installed_version
from rsl_tbptt.models import SelectedTeachers
from rsl_tbptt.tools.platforms import (
    PLATFORMS,
    Platform,
    Simulation,
    Trained,
    load_platform,
    platform_of,
)
from rsl_tbptt.tools.platforms.noted import NotedEnv, is_allowed
from rsl_tbptt.tools.progress import track

ALGORITHMS = ("TbpttDistillation", "TbpttPPO")
NUM_REAL_ENVS = 16
"""Environments that are simulated."""
NUM_ENVS = (256, 512, 1024, 2048, 4096)
MICRO_BATCHES = (1, 2, 4, 8)
"""Columns of the table."""
SEED = 0
MB, GB = 1e6, 1e9
ADVICE = "name a task or an --agent that trains with TbpttDistillation or TbpttPPO."


@dataclass(frozen=True)
class Row:
    """The memory of a training with some environments, in bytes."""

    num_envs: int
    """Environments."""

    update: MemoryPlan
    """An update, in addition to storage and models."""

    storage: float
    """The rollout."""

    models: float
    """Models, and what the optimiser keeps for each parameter."""

    def total(self, num_micro_batches: int) -> float:
        """Return the sum with a number of micro-batches, the full replay buffer included."""
        fixed = self.update.sizes.replay_buffer + self.storage + self.models
        return self.update.peak(num_micro_batches) + fixed

    def micro_batches(self, budget: float) -> int | None:
        """Return the least number of micro-batches with which all fits; None where none does."""
        numbers = range(1, self.update.sizes.num_envs + 1)
        return next((number for number in numbers if self.total(number) <= budget), None)


@dataclass(frozen=True)
class Planned:
    """What is to be trained."""

    platform: Platform
    task: Trained
    """For rsl_rl alone ``module:function``, without an agent."""

    agent: Mapping[str, Any]
    """The runner's config."""

    noted: Path | None = None
    """File of the environment's config of a training."""


def planned(
    checkpoint: Path | None,
    *,
    platform_name: str | None = None,
    task: str | None = None,
    agent: str | None = None,
) -> Planned:
    """Find task and agent.

    Args:
        checkpoint: A checkpoint, whose training's config is taken. None takes a registered one.
        platform_name: One of :data:`PLATFORMS`. None takes the checkpoint's, or the one installed.
        task: Registered id, or for rsl_rl alone ``module:function``.
        agent: Name of the agent's config in Isaac Lab; for rsl_rl alone a YAML file.

    Raises:
        ValueError: If something is missing, or a run's config names code of other packages.
    """
    if checkpoint is not None:
        platform = load_platform(platform_name or platform_of(checkpoint))
        trained = Trained(task, "") if platform.PROGRAM is None and task else None
        trained = trained or platform.find_trained(checkpoint, task)
        noted, file = checkpoint.parent / ENV, Path(agent or checkpoint.parent / AGENT)
        config = read_config(file)
        # Texts at the top are names of runs and files, and the runner's class is one of rsl_rl's.
        _check_texts({k: v for k, v in config.items() if not isinstance(v, str)}, file)
        return Planned(platform, trained, config, noted if noted.is_file() else None)
    if task is None:
        raise ValueError("--task is missing, expected it or --checkpoint or --env.")
    platform = load_platform(platform_name) if platform_name else _installed()
    if platform.PROGRAM is None:
        if agent is None:
            raise ValueError("--agent is missing, expected with --env a YAML file of the runner.")
        return Planned(platform, Trained(task, ""), read_config(Path(agent)))
    trained = Trained(task, agent or platform.DEFAULT_AGENT)
    return Planned(platform, trained, platform.registered_agent(trained))


def _installed() -> Platform:
    """Return the first platform with tasks that is installed.

    Raises:
        ValueError: If none is.
    """
    for platform in map(load_platform, PLATFORMS):
        if platform.PROGRAM and installed_version(platform.PACKAGES[0]) is not None:
            return platform
    raise ValueError(
        "Neither Isaac Lab nor mjlab is installed, expected one of them for --task. With rsl_rl"
        " alone name --env module:function and --agent."
    )


def _check_texts(value: Any, file: Path, key: Any = None) -> None:
    """Check that a run's config names no code of other packages, which would be imported.

    Raises:
        ValueError: If it does.
    """
    if isinstance(value, Mapping):
        for name, each in value.items():
            _check_texts(each, file, name)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _check_texts(each, file, key)
    # model_100.pt looks like code, too, but a file of a teacher is only read.
    elif isinstance(value, str) and not (str(key).endswith("checkpoint") or is_allowed(key, value)):
        raise ValueError(
            f"{file} names {value!r} as {key}, expected a class of rsl_rl or this package that"
            " loads no code: a run's folder may come from anybody. Name the task, with --task,"
            " instead of the checkpoint."
        )


def plan(
    what: Planned,
    num_envs: Sequence[int] = NUM_ENVS,
    *,
    overrides: Sequence[str] = (),
    device: str = "cpu",
) -> list[Row]:
    """Plan updates.

    Args:
        what: What is to be trained.
        num_envs: Numbers of environments.
        overrides: Presets and settings of the task, in the platform's form.
        device: Device of the update: micro-batches and the kernels of scans depend on it.

    Returns:
        A row for each number for whose rollouts ``buffer_gb`` has room, and one for the largest
        such number if there are larger ones.

    Raises:
        ValueError: If the algorithm is another library's, a model has batch normalisation, or
            ``buffer_gb`` has no room for the least number.
    """
    name = str(what.agent["algorithm"]["class_name"]).replace(":", ".").rpartition(".")[2]
    if name not in ALGORITHMS:
        raise ValueError(f"The algorithm is {name}, expected one with a memory_plan(): {ADVICE}")
    simulation = Simulation(
        task=what.task.task,
        num_envs=NUM_REAL_ENVS,
        seed=SEED,
        device=device,
        clip_actions=what.agent.get("clip_actions"),
        overrides=overrides,
        noted=NotedEnv(what.noted),
    )
    rows: list[Row] = []
    with what.platform.simulated_env(simulation) as env:
        for number in track(sorted({*num_envs}), "numbers of environments"):
            most = min(number, rows[0].update.sizes.most_envs) if rows else number
            if not rows or most > rows[-1].num_envs:
                rows.append(row_of(filled(what, RepeatedEnv(env, int(most)), device)))
    return rows


class RepeatedEnv:
    """Simulates few environments and repeats them to the requested number.

    Every number of steps, shapes and frames is as with so many real ones.
    """

    def __init__(self, env: Any, num_envs: int) -> None:
        """Take the environments.

        Args:
            env: Some environments, in rsl_rl's form.
            num_envs: Environments to show.
        """
        self._env, self.num_envs = env, num_envs
        self._shown = torch.arange(num_envs, device=env.device) % env.num_envs
        self._acting = torch.arange(env.num_envs, device=env.device) % num_envs

    def __getattr__(self, name: str) -> Any:
        """Return everything else as it is."""
        return getattr(self._env, name)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps of the running episodes. Shape: (N,)."""
        return self._env.episode_length_buf[self._shown]

    def get_observations(self) -> TensorDict:
        """Return observations, batch size (N,)."""
        return self._env.get_observations()[self._shown]

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Step the environments with the actions, (N, A), of as many as there are."""
        obs, rewards, dones, extras = self._env.step(actions[self._acting])
        extras = {k: v[self._shown] for k, v in extras.items() if k == "time_outs"}
        return obs[self._shown], rewards[self._shown], dones[self._shown], extras


def row_of(algorithm: Any) -> Row:
    """Plan the updates of an algorithm that has a whole rollout in its storage."""
    update = algorithm.memory_plan()
    storage = _bytes(vars(algorithm.storage).values())
    modules = [*algorithm.transaction.modules, *filter(None, [_teacher_of(algorithm)])]
    models = _bytes(tensor for module in modules for tensor in module.state_dict().values())
    for optimizer in algorithm.transaction.optimizers:
        for group in optimizer.param_groups:
            moments = 2 if "betas" in group else 0
            models += moments * _bytes(group["params"])
    if getattr(algorithm.options, "weight_average", False):
        models += 2 * _bytes(algorithm.parameters)  # the newest and the average, which take turns
    return Row(algorithm.storage.num_envs, update, storage, models)


def filled(what: Planned, env: Any, device: str) -> Any:
    """Return the algorithm of a training with a whole rollout in its storage.

    Raises:
        ValueError: If a model has batch normalisation.
    """
    cfg: dict[str, Any] = copy.deepcopy({**what.agent})
    if "teacher" in cfg:
        cfg["algorithm"]["teacher_checkpoint"] = None  # any parameters take the same memory
    algorithm = what.platform.make_runner(what.task, env, cfg, device).alg
    _refuse_batch_norm(algorithm)
    algorithm.train_mode()
    # Training asks for the teachers' files when it starts.
    if "teacher" in cfg:
        algorithm.lazy_teacher.is_loaded = True
    elif what.agent["algorithm"].get("teacher_cfg"):
        algorithm.imitation.is_loaded = True
    if isinstance(teacher := _teacher_of(algorithm), SelectedTeachers):
        teacher.is_read = True
    roll_out(algorithm, env, 1)
    algorithm.storage.clear()  # the next rollout begins with hidden states, as all but the first do
    roll_out(algorithm, env, cfg["num_steps_per_env"])
    return algorithm


def _teacher_of(algorithm: Any) -> Any:
    """Return the teacher of a distillation, or the one that PPO imitates; None without one."""
    return getattr(getattr(algorithm, "imitation", algorithm), "teacher", None)


@torch.inference_mode()
def roll_out(algorithm: Any, env: Any, num_steps: int) -> None:
    """Step environments with an algorithm as a runner does, up to its update."""
    device = algorithm.storage.dones.device
    obs = env.get_observations().to(device)
    for _ in range(num_steps):
        obs, rewards, dones, extras = env.step(algorithm.act(obs).to(env.device))
        obs, rewards, dones = obs.to(device), rewards.to(device), dones.to(device)
        algorithm.process_env_step(obs, rewards, dones, extras)
    algorithm.compute_returns(obs)


def _refuse_batch_norm(algorithm: Any) -> None:
    """Check that no model normalises over a batch: a plan is measured with one environment, too.

    Raises:
        ValueError: If one does.
    """
    for module in algorithm.transaction.modules:
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"{type(module).__name__} has a {type(part).__name__}, expected a model without"
                    " it: the plan is measured with one environment, too, which cannot be"
                    " normalised over. LayerNorm can."
                )


def _bytes(values: Iterable[Any]) -> float:
    """Sum the bytes of the tensors among values, which may lie in TensorDicts."""
    total = 0.0
    for value in values:
        if isinstance(value, TensorDict):
            total += _bytes(value.values(include_nested=True, leaves_only=True))
        elif isinstance(value, torch.Tensor):
            total += value.nbytes
        elif isinstance(value, (list, tuple)):
            total += _bytes(value)
    return total


def table(rows: Sequence[Row], budget_gb: float | None) -> str:
    """Write rows as a table, in MB.

    Args:
        rows: The rows.
        budget_gb: Memory that there is. None leaves out how many micro-batches fit.
    """
    peaks = [f"update, {number} part{'s' * (number > 1)}" for number in MICRO_BATCHES]
    heads = ["num_envs", *peaks, "replay buffer", "storage", "models, optimiser"]
    lines = [heads + (["fits in parts"] if budget_gb is not None else [])]
    for row in rows:
        sizes = [row.update.peak(number) for number in MICRO_BATCHES]
        sizes += [row.update.sizes.replay_buffer, row.storage, row.models]
        cells = [str(row.num_envs), *(f"{size / MB:.1f}" for size in sizes)]
        if budget_gb is not None:
            cells.append(str(row.micro_batches(budget_gb * GB) or "no"))
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def answer(rows: Sequence[Row], budget_gb: float) -> str:
    """Say how many environments fit into a budget, by number of micro-batches.

    Between and beyond the rows, memory is a line in the number of environments.
    """
    fits: dict[int, int] = {}
    for number in MICRO_BATCHES:
        most = three_digits(most_envs(rows, number, budget_gb * GB))
        if most > max(fits.values(), default=0):
            fits[number] = most
    if not fits:
        return f"{budget_gb:g} GB: not even {rows[0].num_envs} environments fit."
    said = ", ".join(f"{most} with num_micro_batches={number}" for number, most in fits.items())
    return f"{budget_gb:g} GB: about {said}. The simulator's memory comes on top."


def refusal(row: Row) -> str:
    """Say how many environments the replay buffer of a plan has room for."""
    return (
        f"More than {row.update.sizes.most_envs:.0f} environments are refused: buffer_gb has no"
        " room for their newest rollout and one sequence of the past."
    )


def three_digits(number: int) -> int:
    """Round down to a number whose first three digits alone are not zero."""
    unit = 10 ** max(0, len(str(number)) - 3)
    return number // unit * unit


def most_envs(rows: Sequence[Row], num_micro_batches: int, budget: float) -> int:
    """Return the most environments that fit into some bytes; 0 if those of no row do.

    A replay buffer without room for their rollouts limits them, too.
    """
    sizes = [(row.num_envs, row.total(num_micro_batches)) for row in rows]
    if sizes[0][1] > budget:
        return 0
    if len(sizes) == 1:
        return sizes[0][0]
    fitting = sum(size <= budget for _, size in sizes)
    first = min(fitting, len(sizes) - 1) - 1
    (num_envs, size), (more, larger) = sizes[first : first + 2]
    most = num_envs + (budget - size) * (more - num_envs) / (larger - size)
    return int(min(most, rows[0].update.sizes.most_envs))
