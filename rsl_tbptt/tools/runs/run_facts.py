"""Read a training's log folder: its task, date and commit, and commands to go on with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rsl_tbptt.checkpoints.reading import numbered_checkpoints
from rsl_tbptt.tools.platforms import Training, load_platform, platform_in
from rsl_tbptt.tools.runs.resume import read_run, rest_of_training

EVENTS = re.compile(r"events\.out\.tfevents\.(\d+)\.")
"""Name of TensorBoard's file, with the second at which a training began."""
COMMIT = re.compile(r"--- git commit ---\s+([0-9a-f]{7,40})")
"""The commit in rsl_rl's notes on a repository; older releases note none."""


class RunFacts:
    """A log folder of a training."""

    def __init__(self, folder: Path) -> None:
        """Read its configs and find its newest checkpoint, without reading that.

        Raises:
            ValueError: If a config cannot be read.
        """
        self._folder = folder.resolve()
        self._num_envs: Any
        self._agent, self._num_envs = read_run(self._folder)
        self._checkpoint = next(iter(numbered_checkpoints(self._folder)), None)
        self.platform = load_platform(platform_in(self._folder))
        self._trained = None
        if self._checkpoint is not None:
            with suppress(ValueError, OSError, ImportError):  # asks mjlab, if it is installed
                self._trained = self.platform.find_trained(self._checkpoint)

    def facts(self) -> dict[str, str]:
        """Return the known facts as text, by name."""
        algorithm: Mapping[str, Any] = self._agent.get("algorithm") or {}
        found = {
            "task": self._trained and self._trained.task,
            "platform": self.platform.TITLE,
            "algorithm": str(algorithm.get("class_name") or "").rpartition(":")[2],
            "newest checkpoint": self._checkpoint and self._checkpoint.name,
            "environments": self._num_envs,
            "seed": self._agent.get("seed"),
            "began": self._began(),
            "commit": ", ".join(self._commits()),
        }
        return {name: str(value) for name, value in found.items() if value not in (None, "")}

    def _began(self) -> str | None:
        seconds = [int(m[1]) for path in self._folder.iterdir() if (m := EVENTS.match(path.name))]
        return written(min(seconds)) if seconds else None

    def _commits(self) -> list[str]:
        found = []
        for path in sorted(self._folder.glob("git/*.diff")):
            text = path.read_text(encoding="utf-8", errors="replace")
            if match := COMMIT.search(text):
                changed = "--- git diff ---" in text and text.partition("--- git diff ---")[2]
                more = " with changes" if changed and changed.strip() else ""
                found.append(f"{path.stem} {match[1][:12]}{more}")
        return found

    def commands(self, evaluated: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return the known commands for this training, with absolute paths.

        Args:
            evaluated: An evaluation; for rsl_rl alone it names the environment.
        """
        commands = {}
        device = str(self._agent.get("device") or "cpu")
        known = self._trained and self._agent.get("max_iterations") and self._num_envs
        if known and self._checkpoint is not None:
            with suppress(ImportError):  # asks Isaac Lab about tasks that are not ours
                commands["train"] = self._train(device, self._teacher())
                with suppress(ValueError):  # no iteration is left
                    commands["resume"] = self._resume(device, self._checkpoint)
        if self._checkpoint is not None:
            checkpoint = ["--checkpoint", self._checkpoint]
            has_robots = self.platform.PROGRAM is not None
            where = ["--env", evaluated["task"]] if evaluated and not has_robots else []
            if has_robots:
                commands["play"] = _tool("play", *checkpoint, "--device", device)
            if has_robots or where:
                commands["evaluate"] = _tool("evaluate", *checkpoint, *where, "--device", device)
            if self._agent:
                commands["export"] = _tool("export", *checkpoint, *where)
        return commands | {"judge": _tool("doctor", self._folder)}

    def _train(self, device: str, checkpoint: Path | None) -> str:
        """Return the platform's command that trains anew; ``checkpoint`` is a teacher's."""
        assert self._trained is not None
        training = Training(
            task=self._trained.task,
            agent=self._trained.agent,
            num_envs=self._num_envs,
            iterations=self._agent["max_iterations"],
            seed=self._agent.get("seed") or 0,
            run_name=self._agent.get("run_name") or "run",
            checkpoint=checkpoint,
        )
        return shlex.join(self.platform.train_command(training, device=device))

    def _resume(self, device: str, checkpoint: Path) -> str:
        """Write the platform's training from the newest checkpoint of this run."""
        assert self._trained is not None
        training = rest_of_training(
            checkpoint, agent=self._agent, num_envs=self._num_envs, trained=self._trained
        )
        return shlex.join(self.platform.train_command(training, device=device))

    def _teacher(self) -> Path | None:
        """Return the checkpoint that the training was given."""
        given = str(self._agent.get("load_checkpoint") or "")
        if "/" in given:  # Isaac Lab notes it relative to the folder that holds logs/
            above = self._folder.parents
            path = above[3] / given if len(above) > 3 else Path(given)
            return path if path.is_file() else Path(given)
        path = self._folder.parent / str(self._agent.get("load_run")) / given
        return path if self._agent.get("resume") and path.is_file() else None


def written(seconds: float) -> str:
    """Format a time, in seconds since the epoch, in UTC."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def _tool(*words: object) -> str:
    return shlex.join(["rsl-tbptt", *map(str, words)])
