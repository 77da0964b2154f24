"""One process with Isaac Lab for all tests: its imports and kernels are loaded once.

The simulator starts in half a minute in a new process and in a few seconds here. Run as
a script, this file is that process: it reads jobs from its standard input and runs them in turn.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path


class IsaacLab:
    """The tests' handle of the process."""

    def __init__(self, folder, environment: dict[str, str]):
        """Start the process; the output of its jobs goes to files in ``folder``."""
        self._folder, self._num_jobs = folder, 0
        replies, self._their_end = os.pipe()
        self._replies = os.fdopen(replies)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._their_end)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=[self._their_end],
        )
        os.close(self._their_end)
        assert self._process.stdin is not None
        self._jobs = self._process.stdin

    def call(self, function, *arguments, folder=None, succeeds=True, **environment):
        """Run ``"module:function"`` or ``"file.py:function"`` there.

        Args:
            function: Function to run.
            *arguments: Its arguments, JSON values.
            folder: Working directory; by default a new folder.
            succeeds: Whether the function must succeed; otherwise it must fail.
            **environment: Environment variables for this job.

        Returns:
            The function's result, through JSON, and its output.
        """
        self._num_jobs += 1
        folder = folder or self._folder / str(self._num_jobs)
        folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{self._num_jobs}.log"
        job = [function, arguments, str(folder), str(log), environment]
        self._jobs.write(json.dumps(job) + "\n")
        self._jobs.flush()
        reply = self._replies.readline()
        printed = log.read_text(errors="replace")
        assert reply, f"the process ended with {self._process.wait()}: {printed[-3000:]}"
        error, value = json.loads(reply)
        assert (not error) == succeeds, f"{error}\n{printed[-3000:]}"
        return value, printed + error

    def tool(self, *words, folder=None):
        """Run ``rsl-tbptt`` there, which has to succeed, and return what it printed."""
        main = "rsl_tbptt.tools.commands.cli:main"
        status, printed = self.call(main, [*map(str, words)], folder=folder)
        assert status == 0, printed
        return printed

    def close(self):
        """End the process."""
        self._jobs.close()
        self._process.wait()
        self._replies.close()


def work(replies):
    """Run jobs until the input ends."""
    from isaaclab.cli import load_external_tasks

    load_external_tasks()
    for line in sys.stdin:
        function, arguments, folder, log, environment = json.loads(line)
        os.chdir(folder)
        with printing_to(log), variables(environment):
            reply = attempt(function, arguments)
        replies.write(json.dumps(reply, default=lambda x: x.tolist()) + "\n")
        replies.flush()


def look_at(task, num_envs, measure, change=lambda env_cfg: None):
    """Build an environment on the CPU; return the result of ``measure``, through JSON.

    Args:
        task: Registered id.
        num_envs: Number of environments.
        measure: Function of the environment.
        change: Function that changes its config.
    """
    import gymnasium as gym
    from isaaclab.app import launch_simulation
    from isaaclab_tasks.utils import resolve_task_config

    env_cfg, _ = resolve_task_config(task, None, overrides=["physics=newton_mjwarp"])
    env_cfg.scene.num_envs, env_cfg.sim.device, env_cfg.seed = num_envs, "cpu", 3
    change(env_cfg)
    with launch_simulation(env_cfg, argparse.Namespace(device="cpu", headless=True)):
        env = gym.make(task, cfg=env_cfg).unwrapped
        seen = json.dumps(measure(env), default=lambda x: x.tolist())
        env.close()  # frees the simulator's memory
    return json.loads(seen)


def columns(rows):
    """Return a table's columns."""
    return [list(column) for column in zip(*rows, strict=True)]


def attempt(function, arguments):
    """Return the traceback or an empty text, and what the function returned."""
    try:
        return "", load(function)(*arguments)
    except BaseException:
        return traceback.format_exc(), None


def load(function):
    """Return the function that ``"module:name"`` or ``"file.py:name"`` names."""
    source, name = function.split(":")
    if not source.endswith(".py"):
        return getattr(importlib.import_module(source), name)
    spec = importlib.util.spec_from_file_location(Path(source).stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@contextlib.contextmanager
def printing_to(log):
    """Send all output to a file, including that of C libraries."""
    kept = [os.dup(stream) for stream in (1, 2)]
    with open(log, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    for stream, copy in zip((1, 2), kept, strict=True):
        os.dup2(copy, stream)
        os.close(copy)


@contextlib.contextmanager
def variables(environment):
    """Set environment variables temporarily."""
    kept = dict(os.environ)
    os.environ.update(environment)
    yield
    os.environ.clear()
    os.environ.update(kept)


if __name__ == "__main__":
    tests = Path(__file__).parents[1]
    sys.path[:1] = [str(tests), str(tests.parent)]  # for the tests' helpers and the scripts
    work(os.fdopen(int(sys.argv[1]), "w"))
    os._exit(0)  # without cleanup, which takes seconds after a simulator
