"""Run mjlab's own commands in turn in one process, which loads the simulator only once.

Usage: ``python mjlab_process.py COMMANDS.json``, a list of command lines, each a list of words and
the environment variables that it adds. A word that starts with ``logs/`` is a pattern of one file.
``play`` runs a viewer without a screen for a few episodes; ``rsl-tbptt`` has to succeed.
"""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from mjlab.scripts import play, train
from mjlab.viewer.base import BaseViewer

from rsl_tbptt.tools.commands import cli

NUM_PLAY_STEPS = 40


class HeadlessViewer(BaseViewer):
    """mjlab's own viewer loop without rendering.

    Prints for every step which environments started an episode, and in which the policy's memory is
    that after a first step.
    """

    setup = sync_env_to_viewer = sync_viewer_to_env = close = is_running = None

    def __init__(self, env, policy, **_):
        super().__init__(env, self._watched(policy))
        self._model: Any = getattr(policy, "_policy", policy)
        self._seen = None

    def _watched(self, policy):
        def act(obs):
            self._seen = obs
            return policy(obs)

        return act

    def run(self):
        steps = []
        for _ in range(NUM_PLAY_STEPS):
            starts = (self.env.episode_length_buf == 0).tolist()
            assert self._execute_step(), self._last_error
            steps.append({"starts": starts, "blank": self._blank()})
        report("PLAYED", json.dumps(steps))

    def _blank(self):
        """Return which environments' memory equals that after one step, or None without memory."""
        state = self._model.get_hidden_state()
        if state is None:
            return None
        with torch.no_grad():
            self._model.reset()
            self._model(self._seen)
        after_one_step = self._model.get_hidden_state()
        self._model.reset(hidden_state=state)
        differences = [
            (a - b).abs().amax(dim=(0, 2)) for a, b in zip(state, after_one_step, strict=True)
        ]
        return (torch.stack(differences).amax(dim=0) < 1e-6).tolist()


def existing(pattern):
    """Return the one file that a pattern describes."""
    (path,) = Path().glob(pattern)
    return str(path)


def report(*words):
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def run_tool():
    assert cli.main() == 0


PROGRAMS = {"train": train.main, "play": play.main, "rsl-tbptt": run_tool}


def main():
    play.ViserPlayViewer = HeadlessViewer
    before = dict(os.environ)
    for number, (words, variables) in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        report(f"COMMAND {number}:", *words)
        # As in a new process: mjlab keeps its choice of the device in a variable.
        os.environ.clear()
        os.environ.update(before | variables)
        sys.argv = [existing(word) if word.startswith("logs/") else word for word in words]
        PROGRAMS[words[0]]()


if __name__ == "__main__":
    main()
