"""Platforms: each offers what the commands ask for, and knows its own checkpoints."""

import dataclasses
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rsl_tbptt.tools.platforms import (
    PLATFORMS,
    Simulation,
    Trained,
    executable,
    load_platform,
    platform_of,
)
from rsl_tbptt.tools.platforms import envpool as envpool_module
from rsl_tbptt.tools.platforms import mjlab as mjlab_module

isaaclab, mjlab, envpool, rsl_rl_alone = map(load_platform, PLATFORMS)


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "agent.yaml").write_text("experiment_name: e")
    (tmp_path / "model_1.pt").touch()
    return tmp_path / "model_1.pt"


def note(checkpoint, **values):
    manifest = {"library": "rsl_rl", "task": "T", "metadata": {"agent": "a"}} | values
    (checkpoint.parent / "run.json").write_text(json.dumps(manifest))


def test_a_checkpoint_is_the_platforms_whose_files_lie_beside_it(checkpoint):
    assert platform_of(checkpoint) == "rsl_rl"
    env = checkpoint.parent / "params" / "env.yaml"
    env.write_text("viewer: {}\nsim:\n  physics: {}\n")  # Isaac Lab before 3.0
    assert platform_of(checkpoint) == "rsl_rl"
    env.write_text("decimation: 4\nsim:\n  nconmax: null\n  mujoco:\n    timestep: 0.002\n")
    assert platform_of(checkpoint) == "mjlab"
    note(checkpoint)
    assert platform_of(checkpoint) == "isaaclab"


def test_isaac_lab_notes_task_and_agent(checkpoint):
    note(checkpoint)
    assert isaaclab.find_trained(checkpoint) == Trained("T", "a")
    assert isaaclab.find_trained(checkpoint, "Other") == Trained("Other", "a")
    note(checkpoint, metadata={})
    assert isaaclab.find_trained(checkpoint) == Trained("T", "rsl_rl_cfg_entry_point")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"library": "skrl", "task": "T"}'])
def test_a_note_that_is_none_of_rsl_rl_is_named(checkpoint, text):
    (checkpoint.parent / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json.* (as Isaac Lab's note|library is 'skrl')"):
        isaaclab.find_trained(checkpoint)


@dataclasses.dataclass
class Motion:
    """A command's config."""

    motion_file: str = ""
    rate: float = 1.0


@dataclasses.dataclass
class Scene:
    """The scene's config."""

    num_envs: int = 1


@dataclasses.dataclass
class EnvCfg:
    """Stands for mjlab's config of an environment."""

    seed: int | None = None
    decimation: int = 4
    is_finite: bool = False
    limits: tuple[float, ...] = (0.0, 1.0)
    history_length: int | None = None
    scene: Scene = dataclasses.field(default_factory=Scene)
    commands: dict[str, Any] = dataclasses.field(default_factory=lambda: {"motion": Motion()})


@pytest.fixture
def built(monkeypatch):
    """Stand for mjlab's registry and environments; return the configs that were simulated."""
    configs = []

    class Env:
        def __init__(self, cfg, *_, **__):
            configs.append(cfg)

        def close(self):
            pass

    registry = SimpleNamespace(list_tasks=lambda: ["Other", "Tracking"])
    registry.load_env_cfg = lambda task: EnvCfg()
    module = SimpleNamespace(ManagerBasedRlEnv=Env, RslRlVecEnvWrapper=Env)
    monkeypatch.setattr(mjlab_module, "_registry", lambda: registry)
    monkeypatch.setattr(mjlab_module, "import_module", lambda _: module)
    return configs


def test_mjlabs_task_is_that_of_the_experiment_or_named_by_the_user(checkpoint, built):
    names = {"Other": "e", "Tracking": "other"}
    registry = mjlab_module._registry()
    registry.load_rl_cfg = lambda task: SimpleNamespace(experiment_name=names[task])
    assert mjlab.find_trained(checkpoint) == Trained("Other", "")
    names["Tracking"] = "e"
    with pytest.raises(ValueError, match=r"--task is missing, expected one of \['Other', 'Track"):
        mjlab.find_trained(checkpoint)
    assert mjlab.find_trained(checkpoint, "Mine") == Trained("Mine", "")
    with pytest.raises(ValueError, match=r"The task is 'Task', expected one of \['Other'"):
        simulated(mjlab, "Task").__enter__()


def test_mjlab_simulates_the_registered_task_with_overrides(built):
    words = ["commands.motion.motion_file=/data/walk.npz", "commands.motion.rate=2"]
    words += ["decimation=8", "is_finite=true", "limits=[0.0, 0.5]", "history_length=5"]
    with simulated(mjlab, "Tracking", overrides=[f"env.{word}" for word in words]):
        motion = {"motion": Motion("/data/walk.npz", 2.0)}
        changed = {"decimation": 8, "is_finite": True, "limits": (0.0, 0.5), "history_length": 5}
        assert built[0] == EnvCfg(seed=5, scene=Scene(2), commands=motion, **changed)
        assert type(built[0].commands["motion"].rate) is float


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("presets=depth", "expected env.NAME=VALUE"),
        ("env.decimation", "expected env.NAME=VALUE"),
        ("env.decimtion=8", r"env has no 'decimtion', expected a name such as \['decimation"),
        ("env.commands.motion.motion-file=a", r"commands\.motion has no .*\['motion_file'"),
        ("env.decimation.x=8", r"env\.decimation has no 'x'"),
        ("env.decimation=half", "expected a int such as 4"),
        ("env.decimation=0.5", "expected a int such as 4"),
        ("env.is_finite=1", "expected a bool such as False"),
        ("env.scene=3", "expected a Scene"),
    ],
)
def test_an_override_that_mjlabs_task_does_not_have_is_named(built, word, message):
    with pytest.raises(ValueError, match=f"The override is '{word}'.*{message}"):
        simulated(mjlab, "Tracking", overrides=[word]).__enter__()
    assert not built


@pytest.fixture
def registered(monkeypatch):
    """Stand for a package with one task of EnvPool, which notes what it is made with."""

    def make(*arguments, **settings):
        return SimpleNamespace(made=(arguments, settings), close=lambda: None)

    point = SimpleNamespace(load=lambda: SimpleNamespace(TASKS={"Mine": make}))
    monkeypatch.setattr(envpool_module, "entry_points", lambda group: [point])


def test_envpool_simulates_a_registered_task_with_settings(checkpoint, registered):
    (checkpoint.parent / "params" / "env.yaml").write_text("envpool: Mine\nsettings: {}\n")
    assert platform_of(checkpoint) == "envpool"
    assert envpool.find_trained(checkpoint) == Trained("Mine", "")
    assert envpool.find_trained(checkpoint, "Other") == Trained("Other", "")
    (checkpoint.parent / "params" / "env.yaml").write_text("sim: {}\n")
    with pytest.raises(ValueError, match=r"--task is missing: params/env\.yaml of .* notes no"):
        envpool.find_trained(checkpoint)
    words = ["env.history=5", "env.motor_gain=(0.8, 1.1)", "env.task=walk", "env.kp=1e-3"]
    words += ["env.on=true", "env.off=None"]
    with simulated(envpool, "Mine", overrides=words) as env:
        settings = {"history": 5, "motor_gain": (0.8, 1.1), "task": "walk", "kp": 1e-3}
        settings |= {"on": True, "off": None}
        assert env.made == ((2, 5, "cpu"), settings)


@pytest.mark.parametrize(
    ("task", "word", "message"),
    [
        ("Mine", "history=5", r"override is 'history=5', expected env\.NAME=VALUE"),
        ("Mine", "env.history", r"setting is 'env\.history', expected NAME=VALUE"),
        ("Other", "env.history=5", r"task is 'Other', expected one of \['Mine'\]"),
    ],
)
def test_what_no_task_of_envpool_has_is_named(registered, task, word, message):
    with pytest.raises(ValueError, match=message):
        simulated(envpool, task, overrides=[word]).__enter__()


def simulated(platform, task, **options):
    """Return the context of a platform's environments."""
    options = {"num_envs": 2, "seed": 5, "device": "cpu"} | options
    return platform.simulated_env(Simulation(task=task, **options))


MAKER = """
class Env:
    num_envs, device, max_episode_length, get_observations, step = 2, "cpu", 3, None, None

    def __init__(self, *arguments):
        self.arguments, self.is_open = arguments, True

    def close(self):
        self.is_open = False


def make(num_envs, seed, device):
    return Env(num_envs, seed, device)
"""


def test_an_environment_is_made_by_the_users_function_and_closed(tmp_path, monkeypatch):
    (tmp_path / "my_maker.py").write_text(MAKER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    with simulated(rsl_rl_alone, "my_maker:make") as env:
        assert env.arguments == (2, 5, "cpu")
        assert env.is_open
    assert not env.is_open


class Drawing:
    """Draws its first observation."""

    def __init__(self, steps=0):
        self.episode_length_buf = torch.full((2,), steps)

    def get_observations(self):
        return TensorDict({"policy": torch.randn(2, 3)}, batch_size=[2])


class Resetting(Drawing):
    """Its episodes begin when it is told."""

    def reset(self):
        self.episode_length_buf.zero_()


def test_the_same_seed_starts_the_same_episodes():
    first, second = (rsl_rl_alone.restart(Drawing(), 5)["policy"] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, rsl_rl_alone.restart(Drawing(), 6)["policy"])


def test_an_episode_that_has_begun_is_refused_unless_it_can_begin_again():
    with pytest.raises(ValueError, match="episode_length_buf is not 0 everywhere"):
        rsl_rl_alone.restart(Drawing(steps=3), 5)
    assert rsl_rl_alone.restart(Resetting(steps=3), 5)["policy"].shape == (2, 3)


def test_missing_program_names_the_remedy():
    with pytest.raises(FileNotFoundError, match=r"isaaclab extra.*mjlab extra"):
        executable(["no-such-program"])


def test_a_program_is_looked_for_beside_this_python_then_on_the_path(tmp_path, monkeypatch):
    beside, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
        (folder / "isaaclab").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(elsewhere))
    assert executable(["isaaclab", "train"]) == [str(beside / "isaaclab"), "train"]
    (beside / "isaaclab").unlink()
    assert executable(["isaaclab", "train"]) == [str(elsewhere / "isaaclab"), "train"]
