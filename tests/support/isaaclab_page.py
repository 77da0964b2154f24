"""The commands of docs/howto/isaaclab.md, with one iteration and few robots.

They run in the process of :mod:`isaaclab_process`, which calls ``train`` and ``play`` below: Isaac
Lab's own functions of these names, with observers.
"""

import importlib.util
import shlex
import shutil
import sys
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

from support import pages
from support.pages import Command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "isaaclab.md").read_text()
EXAMPLE = ROOT / "examples" / "task_isaaclab"
NEEDS_GPUS = "needs GPUs"
PLACEHOLDERS = {
    "TEACHER": "the teacher",
    "STUDENT": "the student",
    "STOCK_PPO": "stock PPO",
    "MY_TEACHER": "your teacher",
}
"""Placeholders of the page for a checkpoint, and the command that writes it."""

INSTALL = f"{__file__}:install"
STAND_INS = Path(__file__).with_name("isaaclab_stand_ins.py")

NUM_STEPS = 80
"""Number of steps to play; an untrained student falls after 20 to 40."""
SMALL = {"train": ["--max_iterations", "1", "--num_envs", "32"], "play": ["--num_envs", "8"]}
SMALL_ROBOTS = ["--num_envs", "4", "agent.num_steps_per_env=4", "env.decimation=1"]
"""Legged robots take seconds per step on a CPU."""


@dataclass(frozen=True)
class Run:
    """Result of a command."""

    folder: Path
    """Folder of Isaac Lab's checkpoints and configs; the working directory after ``play``."""
    printed: str
    seen: dict
    """Return value of the observed function."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "model_0.pt"


def commands() -> dict[str, Command]:
    """Return the page's commands by their comments, without the word ``isaaclab``."""
    found = pages.commands(PAGE).items()
    return {comment: Command(each.words[1:], each.environment) for comment, each in found}


class Page:
    """The page's commands; each runs when it is first requested."""

    def __init__(self, isaaclab, folder):
        self._isaaclab, self._folder, self._runs = isaaclab, folder, {}

    def __call__(self, comment: str) -> Run:
        """Return the run of the command with this comment."""
        if comment not in self._runs:
            command = commands()[comment]
            self._runs[comment] = self.run(command.words, True, **command.environment)
        return self._runs[comment]

    def run(self, words, succeeds=True, **environment) -> Run:
        """Run a command of the page's form, smaller."""
        if "Velocity" in shlex.join(words) or "Isaac-Cartpole-Camera" in words:
            self._isaaclab.call(f"{STAND_INS}:write_asset_root")
        if "my_task" in words:
            self._isaaclab.call(INSTALL, str(EXAMPLE))
        action, *arguments = map(self._fill_in, words)
        robots = SMALL_ROBOTS if "Velocity" in shlex.join(words) else []
        folder = self._folder / str(len(list(self._folder.iterdir())))
        arguments += [*SMALL[action], *robots]
        seen, printed = self._isaaclab.call(
            f"{__file__}:{action}", arguments, folder=folder, succeeds=succeeds, **environment
        )
        runs = list(folder.glob("logs/rsl_rl/*/*"))
        return Run(runs[0] if action == "train" and succeeds else folder, printed, seen)

    def _fill_in(self, word):
        """Put the path of a checkpoint where the page has a placeholder."""
        *name, value = word.split("=", 1)
        if value not in PLACEHOLDERS:
            return word
        return "=".join([*name, str(self(PLACEHOLDERS[value]).checkpoint)])


def install(source, name="my_task"):
    """Install a package such as examples/task_isaaclab into the working directory."""
    if importlib.util.find_spec(name):
        return
    wheel = pages.build_wheel(Path(shutil.copytree(source, "source")))
    zipfile.ZipFile(wheel).extractall("site-packages")
    sys.path.append(str(Path("site-packages").resolve()))
    importlib.invalidate_caches()


def train(arguments):
    """Run ``isaaclab train``; return what PPO gets of time-outs, and its warnings."""
    from isaaclab.cli import train as isaaclab_train

    from rsl_tbptt.algorithms import TbpttPPO

    steps, original = [], TbpttPPO.process_env_step

    def process_env_step(self, obs, rewards, dones, extras):
        original(self, obs, rewards, dones, extras)
        has_final_obs, time_outs = extras.get("final_obs") is not None, extras["time_outs"].sum()
        steps.append({"final_obs": has_final_obs, "time_outs": int(time_outs)})

    TbpttPPO.process_env_step = process_env_step
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            isaaclab_train(arguments)
    finally:
        TbpttPPO.process_env_step = original
    return {"steps": steps, "warnings": [str(warning.message) for warning in caught]}


def play(arguments):
    """Run ``isaaclab play`` for some steps; save observations and actions to ``played.pt``."""
    import torch
    from isaaclab.cli import play as isaaclab_play
    from isaaclab_rl.entrypoints.backends import play_rsl_rl

    seen = {"obs": [], "actions": [], "dones": []}

    class Watched(play_rsl_rl.RslRlVecEnvWrapper):
        def step(self, actions):
            seen["obs"].append(self.get_observations()["policy"].clone())
            seen["actions"].append(actions.clone())
            result = super().step(actions)
            seen["dones"].append(result[2].bool())
            return result

    def run_playback(step, **_):
        with torch.inference_mode():
            for _ in range(NUM_STEPS):
                step()

    originals = play_rsl_rl.RslRlVecEnvWrapper, play_rsl_rl.run_playback
    play_rsl_rl.RslRlVecEnvWrapper, play_rsl_rl.run_playback = Watched, run_playback
    try:
        isaaclab_play(arguments)
    finally:
        play_rsl_rl.RslRlVecEnvWrapper, play_rsl_rl.run_playback = originals
    torch.save({name: torch.stack(steps) for name, steps in seen.items()}, "played.pt")
