"""Read a training's log folder, and continue the training with the platform's own command.

rsl_rl saves ``model_k.pt`` after iteration k, so k + 1 iterations are done. A platform's command
counts the iterations that it adds, and rsl_rl gives the first of them the number k again::

    training of 10 iterations   0 1 2 3 4 5 x            killed, the newest file is model_4.pt
    its 5 other iterations              4 5 6 7 8        the last file is model_8.pt

"""

import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from rsl_tbptt.checkpoints.reading import NUMBERED, latest_checkpoint, numbered_checkpoints
from rsl_tbptt.files import AGENT, ENV, entry, read_config
from rsl_tbptt.tools.platforms import (
    Platform,
    Trained,
    Training,
    executable,
    load_platform,
    platform_in,
)

KINDS = {
    **dict.fromkeys(("max_iterations", "seed"), int),
    **dict.fromkeys(("device", "run_name", "load_run", "load_checkpoint"), str),
    **dict.fromkeys(("algorithm", "obs_groups"), dict),
}
"""Types of what commands take from an agent's config."""
LOGS = ("logs", "rsl_rl")
"""Where both platforms log, below the working directory."""
EVENTS = re.compile(r"events\.out\.tfevents\.(\d+)\.")
"""Name of TensorBoard's file, with the second at which a training began."""
COMMIT = re.compile(r"--- git commit ---\s+([0-9a-f]{7,40})")
"""The commit in rsl_rl's notes on a repository; older releases note none."""
DIFF = "--- git diff ---"
"""What follows in them before the changes."""


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


class RunFacts:
    """A log folder of a training, each file of which is read once."""

    def __init__(self, folder: Path) -> None:
        """Take the folder."""
        self.folder = folder.resolve()

    @cached_property
    def platform(self) -> Platform:
        """The platform that wrote it."""
        return load_platform(platform_in(self.folder))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The agent's config as it stands, empty without a file.

        Raises:
            ValueError: If it cannot be read.
        """
        return self._config(AGENT)

    @cached_property
    def agent(self) -> dict[str, Any]:
        """That config, once the names and numbers that commands take from it are checked.

        Raises:
            ValueError: If it cannot be read, or a value is of another form.
        """
        agent = self.config
        for name, kind in KINDS.items():
            entry(agent, name, kind, self.folder / AGENT)
        device = agent.get("device") or "cpu"
        if not re.fullmatch(r"[a-z]+(:\d+)?", device):
            raise ValueError(
                f"device is {device!r} in {self.folder / AGENT}, expected cpu or cuda:0."
            )
        return agent

    @cached_property
    def num_envs(self) -> int | None:
        """The number of environments, None if unknown.

        Raises:
            ValueError: If the environment's config cannot be read, or the number is none.
        """
        return entry(self._config(ENV), "scene.num_envs", int, self.folder / ENV)

    def _config(self, file: Path) -> dict[str, Any]:
        path = self.folder / file
        return read_config(path) if path.is_file() else {}

    @cached_property
    def checkpoints(self) -> list[Path]:
        """Its checkpoints, the newest first; none of them is read."""
        return numbered_checkpoints(self.folder)

    @cached_property
    def trained(self) -> Trained | None:
        """Its task and agent, None if they are unknown."""
        if self.checkpoints:
            with suppress(ValueError, OSError, ImportError):  # asks mjlab, if it is installed
                return self.platform.find_trained(self.checkpoints[0])
        return None

    def facts(self) -> dict[str, str]:
        """Return the known facts as text, by name."""
        algorithm: Mapping[str, Any] = self.agent.get("algorithm") or {}
        found = {
            "task": self.trained and self.trained.task,
            "platform": self.platform.TITLE,
            "algorithm": str(algorithm.get("class_name") or "").rpartition(":")[2],
            "newest checkpoint": self.checkpoints and self.checkpoints[0].name,
            "environments": self.num_envs,
            "seed": self.agent.get("seed"),
            "began": self._began(),
            "commit": ", ".join(self._commits()),
        }
        return {name: str(value) for name, value in found.items() if value not in (None, "", [])}

    def _began(self) -> str | None:
        seconds = [int(m[1]) for path in self.folder.iterdir() if (m := EVENTS.match(path.name))]
        return written(min(seconds)) if seconds else None

    def _commits(self) -> list[str]:
        found = []
        for path in sorted(self.folder.glob("git/*.diff")):
            text = path.read_text(encoding="utf-8", errors="replace")
            if match := COMMIT.search(text):
                more = " with changes" if text.partition(DIFF)[2].strip() else ""
                found.append(f"{path.stem} {match[1][:12]}{more}")
        return found

    def commands(self, evaluated: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return the known commands for this training, with absolute paths.

        Args:
            evaluated: An evaluation; for rsl_rl alone it names the environment.
        """
        commands = {}
        device = str(self.agent.get("device") or "cpu")
        if self.checkpoints:
            newest = self.checkpoints[0]
            if self.trained and self.agent.get("max_iterations") and self.num_envs:
                with suppress(ImportError):  # asks Isaac Lab about tasks that are not ours
                    anew = self._training(
                        self.trained,
                        iterations=self.agent["max_iterations"],
                        run_name=self.agent.get("run_name") or "run",
                        checkpoint=self._teacher(),
                    )
                    commands["train"] = self._command(anew, device)
                    with suppress(ValueError):  # no iteration is left
                        rest = self.rest_of_training(newest, self.trained)
                        commands["resume"] = self._command(rest, device)
            checkpoint = ["--checkpoint", newest]
            has_robots = self.platform.PROGRAM is not None
            where = ["--env", evaluated["task"]] if evaluated and not has_robots else []
            if has_robots:
                commands["play"] = _tool("play", *checkpoint, "--device", device)
            if has_robots or where:
                commands["evaluate"] = _tool("evaluate", *checkpoint, *where, "--device", device)
            if self.agent:
                commands["export"] = _tool("export", *checkpoint, *where)
        return commands | {"judge": _tool("doctor", self.folder)}

    def _command(self, training: Training, device: str) -> str:
        return shlex.join(self.platform.train_command(training, device=device))

    def _teacher(self) -> Path | None:
        """Return the checkpoint that the training was given."""
        given = str(self.agent.get("load_checkpoint") or "")
        if "/" in given:  # Isaac Lab notes it relative to the folder that holds logs/
            above = self.folder.parents
            path = above[3] / given if len(above) > 3 else Path(given)
            return path if path.is_file() else Path(given)
        path = self.folder.parent / str(self.agent.get("load_run")) / given
        return path if self.agent.get("resume") and path.is_file() else None

    def rest_of_training(
        self,
        checkpoint: Path,
        trained: Trained,
        *,
        iterations: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Training:
        """Return the training that goes on from a checkpoint to the end of its run.

        Args:
            checkpoint: ``model_<iteration>.pt`` or ``safe_<iteration>.pt`` in the log folder.
            trained: Its task.
            iterations: Iterations to go on for. None takes those that are left.
            settings: What else the run had changed; see :class:`Training`.

        Raises:
            ValueError: If no iteration is left, or ``iterations`` is below 1.
        """
        if iterations is None:
            iterations = self.last_iteration() - number_of(checkpoint)
            if iterations < 1:
                raise ValueError(
                    f"{checkpoint} is the last of {self.agent['max_iterations']} iterations,"
                    " expected some to be left: to train longer, name their number with"
                    " --iterations."
                )
        elif iterations < 1:
            raise ValueError(f"--iterations is {iterations}, expected at least 1.")
        name = str(self.agent.get("run_name") or "run").removesuffix("_resumed")
        return self._training(
            trained,
            iterations=iterations,
            run_name=f"{name}_resumed",
            checkpoint=checkpoint,
            settings=settings or {},
            video=(self.folder / "videos" / "train").is_dir(),
        )

    def _training(self, trained: Trained, **rest: Any) -> Training:
        assert self.num_envs is not None
        seed = self.agent.get("seed") or 0
        return Training(
            task=trained.task, agent=trained.agent, num_envs=self.num_envs, seed=seed, **rest
        )

    def last_iteration(self) -> int:
        """Return the number of the last iteration that a run was to reach.

        A run that continued another begins with the number of the checkpoint that it loaded. Where
        the config has only a pattern of names, as after mjlab's ``--agent.resume True``, that is
        the number of its first checkpoint. A run that loaded a teacher begins with 0: then its
        first checkpoint has a smaller number than that file. If ``keep_last`` has deleted the first
        checkpoints, the result may be too large.
        """
        oldest = number_of(self.checkpoints[-1])
        match = NUMBERED.fullmatch(Path(str(self.agent.get("load_checkpoint"))).name)
        loaded = int(match[1]) if match else oldest if self.agent.get("resume") else 0
        first = loaded if loaded <= oldest else 0
        return first + self.agent["max_iterations"] - 1


def resumption(
    run: Path, *, task: str | None = None, iterations: int | None = None, here: bool = False
) -> Resumption:
    """Write the command that continues a training from its newest checkpoint that can be loaded.

    Args:
        run: Log folder of Isaac Lab or mjlab.
        task: Registered id. None takes the training's.
        iterations: Iterations to go on for. None takes those that are left.
        here: Whether the command runs on this machine: on its CPU if it has no GPU.

    Raises:
        ValueError: If there is no checkpoint, no iteration is left or ``iterations`` is below 1,
            the training was one of rsl_rl alone, or nothing tells its task.
    """
    checkpoint = latest_checkpoint(run.resolve())
    facts, folder = RunFacts(checkpoint.parent), checkpoint.parent
    if facts.platform.PROGRAM is None:
        raise ValueError(
            f"{run} is a run of rsl_rl alone, expected one of Isaac Lab or mjlab: nothing notes its"
            f" script. In the script call runner.load('{checkpoint}') before runner.learn(...)."
        )
    agent, trained = facts.agent, facts.platform.find_trained(checkpoint, task)
    if facts.num_envs is None or agent.get("max_iterations") is None:
        missing = f"scene.num_envs in {folder / ENV} or max_iterations in {folder / AGENT}"
        raise ValueError(f"There is no {missing}, expected the training's configs.")
    settings, others = facts.platform.noted_settings(folder, trained)
    training = facts.rest_of_training(checkpoint, trained, iterations=iterations, settings=settings)
    first = number_of(checkpoint)
    last = first + training.iterations - 1
    remarks = [
        f"{training.iterations} iterations follow the newest checkpoint, {checkpoint.name}. rsl_rl"
        f" numbers the first of them {first} again and the last {last};"
        f" max_iterations of the training was {agent['max_iterations']}.",
        f"{folder} does not tell the number of processes and the environment variables: add those"
        " of the training.",
    ]
    if others:
        remarks.append(
            "These settings differ from the task's, and only you know the option that sets them"
            f" (a preset, for example): {', '.join(others)}."
        )
    device = agent.get("device") or device_of(checkpoint)
    if here and device.startswith("cuda") and not _has_gpu():
        remarks.append(
            f"The training ran on {device}. This machine has no GPU, so it uses the CPU."
        )
        device = "cpu"
    command = facts.platform.train_command(training, device=device)
    return Resumption(command, _working_directory(folder), device, remarks)


def number_of(checkpoint: Path) -> int:
    """Return the iteration after which a checkpoint was written, from its name."""
    match = NUMBERED.fullmatch(checkpoint.name)
    assert match is not None  # as found in a folder
    return int(match[1])


def _has_gpu() -> bool:
    import torch  # not at the top: printing a checkpoint's name has to be quick

    return torch.cuda.is_available()


def device_of(checkpoint: Path) -> str:
    """Return the device whose tensors a checkpoint holds; mjlab notes no other."""
    import torch

    found: list[str] = []

    def on_cpu(storage: Any, location: str) -> Any:
        found.append(location)
        return storage

    torch.load(checkpoint, weights_only=True, map_location=on_cpu)
    return next((location for location in found if location != "cpu"), "cpu")


def _working_directory(folder: Path) -> Path:
    """Return the folder that holds logs/rsl_rl, otherwise the current one."""
    above = folder.parents
    if len(above) > 3 and (above[2].name, above[1].name) == LOGS:
        return above[3]
    return Path.cwd()


def written(seconds: float) -> str:
    """Format a time, in seconds since the epoch, in UTC."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def _tool(*words: object) -> str:
    return shlex.join(["rsl-tbptt", *map(str, words)])
