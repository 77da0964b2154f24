"""Continue a training of Isaac Lab or mjlab with the platform's own command.

rsl_rl saves ``model_k.pt`` after iteration k, so k + 1 iterations are done. A platform's command
counts the iterations that it adds, and rsl_rl gives the first of them the number k again::

    training of 10 iterations   0 1 2 3 4 5 x            killed, the newest file is model_4.pt
    its 5 other iterations              4 5 6 7 8        the last file is model_8.pt

"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsl_tbptt.checkpoints.reading import NUMBERED, latest_checkpoint, numbered_checkpoints
from rsl_tbptt.files import AGENT, ENV, entry, read_config
from rsl_tbptt.tools.platforms import Trained, Training, executable, load_platform, platform_in

KINDS = {
    **dict.fromkeys(("max_iterations", "seed"), int),
    **dict.fromkeys(("device", "run_name", "load_run", "load_checkpoint"), str),
    **dict.fromkeys(("algorithm", "obs_groups"), dict),
}
"""Types of what commands take from an agent's config."""
LOGS = ("logs", "rsl_rl")
"""Where both platforms log, below the working directory."""


@dataclass(frozen=True)
class Resumption:
    """A command that continues a training."""

    command: list[str]
    """The platform's command."""

    folder: Path
    """Working directory in which it logs next to the training."""

    device: str
    """Device that it computes on."""

    remarks: list[str]
    """How the command counts iterations, and what it may lack."""

    @property
    def line(self) -> str:
        """The command as a user types it here."""
        go = "" if self.folder == Path.cwd() else f"cd {shlex.quote(str(self.folder))} && "
        on_path = shutil.which(self.command[0]) is not None
        return go + shlex.join(self.command if on_path else executable(self.command))


def resumption(run: Path, *, task: str | None = None, iterations: int | None = None) -> Resumption:
    """Write the command that continues a training from its newest checkpoint that can be loaded.

    Args:
        run: Log folder of Isaac Lab or mjlab.
        task: Registered id. None takes the training's.
        iterations: Iterations to go on for. None takes those that are left.

    Raises:
        ValueError: If there is no checkpoint, no iteration is left or ``iterations`` is below 1,
            the training was one of rsl_rl alone, or nothing tells its task.
    """
    checkpoint = latest_checkpoint(run.resolve())
    folder = checkpoint.parent
    platform = load_platform(platform_in(folder))
    if platform.PROGRAM is None:
        raise ValueError(
            f"{run} is a run of rsl_rl alone, expected one of Isaac Lab or mjlab: nothing notes its"
            f" script. In the script call runner.load('{checkpoint}') before runner.learn(...)."
        )
    (agent, num_envs), trained = read_run(folder), platform.find_trained(checkpoint, task)
    if num_envs is None or agent.get("max_iterations") is None:
        missing = f"scene.num_envs in {folder / ENV} or max_iterations in {folder / AGENT}"
        raise ValueError(f"There is no {missing}, expected the training's configs.")
    settings, others = platform.noted_settings(folder, trained)
    training = rest_of_training(
        checkpoint,
        agent=agent,
        num_envs=num_envs,
        trained=trained,
        iterations=iterations,
        settings=settings,
    )
    device = agent.get("device") or device_of(checkpoint)
    remarks = [_count(training, agent), *_unknown(folder, others)]
    command = platform.train_command(training, device=device)
    return Resumption(command, _working_directory(folder), device, remarks)


def read_run(folder: Path) -> tuple[dict[str, Any], int | None]:
    """Read what commands take over from a run's configs as it stands: names, numbers, a device.

    Args:
        folder: Log folder of a training.

    Returns:
        The agent's config, empty without a file, and the number of environments, None if unknown.

    Raises:
        ValueError: If a config cannot be read, or a value is of another form.
    """
    agent, env = (
        read_config(folder / file) if (folder / file).is_file() else {} for file in (AGENT, ENV)
    )
    for name, kind in KINDS.items():
        entry(agent, name, kind, folder / AGENT)
    device = agent.get("device") or "cpu"
    if not re.fullmatch(r"[a-z]+(:\d+)?", device):
        raise ValueError(f"device is {device!r} in {folder / AGENT}, expected cpu or cuda:0.")
    return agent, entry(env, "scene.num_envs", int, folder / ENV)


def rest_of_training(
    checkpoint: Path,
    *,
    agent: Mapping[str, Any],
    num_envs: int,
    trained: Trained,
    iterations: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Training:
    """Return the training that goes on from a checkpoint to the end of its run.

    Args:
        checkpoint: ``model_<iteration>.pt`` or ``safe_<iteration>.pt`` in the log folder.
        agent: The run's config of the agent.
        num_envs: Environments of the run.
        trained: Its task.
        iterations: Iterations to go on for. None takes those that are left.
        settings: What else the run had changed; see :class:`Training`.

    Raises:
        ValueError: If no iteration is left, or ``iterations`` is below 1.
    """
    if iterations is None:
        iterations = last_iteration(checkpoint, agent) - number_of(checkpoint)
        if iterations < 1:
            raise ValueError(
                f"{checkpoint} is the last of {agent['max_iterations']} iterations, expected some"
                " to be left: to train longer, name their number with --iterations."
            )
    elif iterations < 1:
        raise ValueError(f"--iterations is {iterations}, expected at least 1.")
    name = str(agent.get("run_name") or "run").removesuffix("_resumed")
    return Training(
        task=trained.task,
        agent=trained.agent,
        num_envs=num_envs,
        iterations=iterations,
        seed=agent.get("seed") or 0,
        run_name=f"{name}_resumed",
        checkpoint=checkpoint,
        settings=settings or {},
        video=(checkpoint.parent / "videos" / "train").is_dir(),
    )


def number_of(checkpoint: Path) -> int:
    """Return the iteration after which a checkpoint was written, from its name."""
    match = NUMBERED.fullmatch(checkpoint.name)
    assert match is not None  # as found in a folder
    return int(match[1])


def last_iteration(checkpoint: Path, agent: Mapping[str, Any]) -> int:
    """Return the number of the last iteration that a run was to reach.

    A run that continued another begins with the number of the checkpoint that it loaded. Where the
    config has only a pattern of names, as after mjlab's ``--agent.resume True``, that is the number
    of its first checkpoint. A run that loaded a teacher begins with 0: then its first checkpoint
    has a smaller number than that file. If ``keep_last`` has deleted the first checkpoints, the
    result may be too large.
    """
    oldest = number_of(numbered_checkpoints(checkpoint.parent)[-1])
    match = NUMBERED.fullmatch(Path(str(agent.get("load_checkpoint"))).name)
    loaded = int(match[1]) if match else oldest if agent.get("resume") else 0
    first = loaded if loaded <= oldest else 0
    return first + agent["max_iterations"] - 1


def device_of(checkpoint: Path) -> str:
    """Return the device whose tensors a checkpoint holds; mjlab notes no other."""
    import torch

    found: list[str] = []

    def on_cpu(storage: Any, location: str) -> Any:
        found.append(location)
        return storage

    torch.load(checkpoint, weights_only=True, map_location=on_cpu)
    return next((location for location in found if location != "cpu"), "cpu")


def _count(training: Training, agent: Mapping[str, Any]) -> str:
    """Say how iterations are counted."""
    assert training.checkpoint is not None
    number = number_of(training.checkpoint)
    return (
        f"{training.iterations} iterations follow the newest checkpoint,"
        f" {training.checkpoint.name}. rsl_rl numbers the first of them {number} again and the last"
        f" {number + training.iterations - 1}; max_iterations of the training was"
        f" {agent['max_iterations']}."
    )


def _unknown(folder: Path, others: list[str]) -> list[str]:
    """Say what the log folder does not tell."""
    remarks = [
        f"{folder} does not tell the number of processes and the environment variables: add those"
        " of the training."
    ]
    if others:
        remarks.append(
            "These settings differ from the task's, and only you know the option that sets them"
            f" (a preset, for example): {', '.join(others)}."
        )
    return remarks


def _working_directory(folder: Path) -> Path:
    """Return the folder that holds logs/rsl_rl, otherwise the current one."""
    above = folder.parents
    if len(above) > 3 and (above[2].name, above[1].name) == LOGS:
        return above[3]
    return Path.cwd()
