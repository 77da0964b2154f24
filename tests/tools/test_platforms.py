"""Platforms: each offers what the commands ask for, and knows its own checkpoints."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml
from tensordict import TensorDict

from rsl_tbptt.tools.platforms import (
    PLATFORMS,
    Simulation,
    Trained,
    child_environment,
    executable,
    load_platform,
    platform_of,
)
from rsl_tbptt.tools.platforms import mjlab as mjlab_module
from rsl_tbptt.tools.platforms.noted import NotedEnv

isaaclab, mjlab, rsl_rl_alone = map(load_platform, PLATFORMS)


def test_platforms_know_their_names():
    assert tuple(platform.name for platform in (isaaclab, mjlab, rsl_rl_alone)) == PLATFORMS


def test_importing_platforms_loads_no_simulator():
    names = ", ".join(f"rsl_tbptt.tools.platforms.{name}" for name in PLATFORMS)
    code = f"import sys, {names}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {"torch", "warp", "mujoco", "mjlab", "isaaclab"}.isdisjoint(result.stdout.split())


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


def test_isaac_lab_plays_with_the_task_and_agent(checkpoint):
    command = isaaclab.play_command(
        Trained("Tbptt-T", "a"), checkpoint, num_envs=3, device="cuda:1"
    )
    assert command == [
        *("isaaclab", "play", "--rl_library", "rsl_rl", "--task", "Tbptt-T", "--agent", "a"),
        *("--checkpoint", str(checkpoint), "--num_envs", "3"),
        *("physics=newton_mjwarp", "--device", "cuda:1", "agent.device=cuda:1"),
    ]


AGENTS = {
    "Teacher": {"experiment_name": "e", "actor": {"class_name": "MLPModel"}},
    "Student": {"experiment_name": "e", "actor": {"class_name": "RNNModel"}},
    "Other": {"experiment_name": "f", "actor": {"class_name": "RNNModel"}},
}


class Registry:
    """Stands for mjlab's registry of tasks."""

    def __init__(self, more=()):
        self.agents = AGENTS | dict(more)

    def list_tasks(self):
        return sorted(self.agents)

    def load_rl_cfg(self, task):
        return self.agents[task]


@pytest.fixture
def registry(monkeypatch):
    def register(**more):
        monkeypatch.setattr(mjlab_module, "_registry", lambda: Registry(more))
        monkeypatch.setattr(mjlab_module, "asdict", dict)

    register()
    return register


def test_mjlabs_task_is_the_one_with_such_an_agent(checkpoint, registry):
    agent = checkpoint.parent / "params" / "agent.yaml"
    agent.write_text("{experiment_name: e, max_iterations: 7, actor: {class_name: RNNModel}}")
    assert mjlab.find_trained(checkpoint) == Trained("Student", "")


@pytest.mark.parametrize(
    ("agent", "expected"),
    [("RNNModel", r"one of \['Another', 'Student'\].* 2 of its tasks"), ("CNNModel", "an id.* 0 ")],
)
def test_mjlabs_task_is_asked_for_where_the_agent_does_not_tell(
    checkpoint, registry, agent, expected
):
    registry(Another=AGENTS["Student"])
    config = f"{{experiment_name: e, actor: {{class_name: {agent}}}}}"
    (checkpoint.parent / "params" / "agent.yaml").write_text(config)
    with pytest.raises(ValueError, match=f"--task is missing, expected {expected}"):
        mjlab.find_trained(checkpoint)
    assert mjlab.find_trained(checkpoint, "Mine").task == "Mine"


def simulated(platform, task, **options):
    """Return the context of a platform's environments."""
    options = {"num_envs": 2, "seed": 5, "device": "cpu"} | options
    return platform.simulated_env(Simulation(task=task, **options))


@pytest.mark.parametrize("platform", [mjlab, rsl_rl_alone])
def test_overrides_are_refused_where_there_are_none(platform):
    with pytest.raises(ValueError, match="overrides is"):
        simulated(platform, "Task", overrides=["presets=depth"]).__enter__()


def test_a_task_that_mjlab_does_not_know_is_named(registry):
    with pytest.raises(ValueError, match=r"The task is 'Task', expected one of \['Other'"):
        simulated(mjlab, "Task").__enter__()


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


@pytest.fixture
def maker(tmp_path, monkeypatch):
    (tmp_path / "my_maker.py").write_text(MAKER)
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])


def test_an_environment_is_made_by_the_users_function_and_closed(maker):
    with simulated(rsl_rl_alone, "my_maker:make") as env:
        assert env.arguments == (2, 5, "cpu")
        assert env.is_open
    assert not env.is_open


@pytest.mark.parametrize("name", ["my_maker:other", "other_maker:make", "my_maker", ":make", ""])
def test_a_function_that_is_not_there_is_named(maker, name):
    with pytest.raises(ValueError, match=f"--env is '{name}', expected module:function"):
        simulated(rsl_rl_alone, name).__enter__()


def test_what_the_users_module_lacks_is_its_own_matter(maker):
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        simulated(rsl_rl_alone, "needs_more:make").__enter__()


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


def test_rsl_rl_alone_asks_for_what_it_cannot_know(checkpoint):
    with pytest.raises(ValueError, match="--env module:function"):
        rsl_rl_alone.find_trained(checkpoint)


@dataclasses.dataclass
class Section:
    """A part of an environment's config."""

    num_envs: int = 1
    limits: tuple = (0.0, 1.0)
    friction: float = 1.0
    term: Any = None


@dataclasses.dataclass
class EnvCfg:
    """Stands for a platform's config of an environment."""

    seed: int = 0
    decimation: int = 2
    episode_length_s: float = 8.0
    kind: str = "plane"
    asset: str = "/here/robot.usda"
    func: Any = len
    scene: Section = dataclasses.field(default_factory=Section)
    pose: dict = dataclasses.field(default_factory=lambda: {".*_hip": 0.1, "knee": 0.2})


def noted_env(folder, **changes):
    """Write a config as platforms do, with some of it changed; return the file."""
    file = folder / "params" / "env.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.dump(dataclasses.asdict(EnvCfg()) | changes, sort_keys=False))
    return file


def test_numbers_of_the_training_are_applied_and_told(tmp_path, capsys):
    scene = {"num_envs": 64, "limits": (0.0, 0.5), "friction": None, "term": 3}
    pose = {".*_hip": 0.4, "knee": 0.2}
    file = noted_env(tmp_path, seed=7, decimation=8, scene=scene, pose=pose, asset="/b/robot.usda")
    cfg = EnvCfg()
    noted = NotedEnv(file)
    noted.apply(cfg, dataclasses.asdict)
    expected = Section(num_envs=1, limits=(0.0, 0.5), friction=cast("float", None), term=3)
    assert cfg == EnvCfg(decimation=8, scene=expected, pose=pose)
    shown = capsys.readouterr().out
    assert shown.startswith(f"as in training, by {file}: decimation=8 scene.limits=[0.0, 0.5] ")
    settings = json.loads(json.dumps(noted.settings))  # as in a bundle
    again = EnvCfg()
    NotedEnv(tmp_path / "policy.json", settings).apply(again, dataclasses.asdict)
    assert again == cfg
    assert capsys.readouterr().out == shown.replace(str(file), str(tmp_path / "policy.json"))


def test_what_is_no_number_is_named_instead_also_code(tmp_path, capsys):
    file = noted_env(tmp_path, kind="rough", scene="flat")
    text = file.read_text().replace("name:builtins.len ''", "object/apply:os.system ['touch it']")
    file.write_text(text + "added: 3\nempty: null\n")
    cfg, noted = EnvCfg(), NotedEnv(file)
    noted.apply(cfg, dataclasses.asdict)
    assert (cfg, capsys.readouterr().out) == (EnvCfg(), "")
    assert not Path("it").exists()
    with pytest.warns(UserWarning, match=r"in kind, func, scene, added, empty, expected the"):
        noted.warn_of_others(cfg)


def test_a_section_of_another_class_is_named_as_a_whole(tmp_path):
    physics = {"class_type": "a:Newton", "dt": 0.1}
    noted, cfg = NotedEnv(noted_env(tmp_path, pose=physics)), EnvCfg(pose={})
    cfg.pose = {"class_type": "b:PhysX", "dt": 0.2}
    noted.apply(cfg, dataclasses.asdict)
    assert cfg.pose == {"class_type": "b:PhysX", "dt": 0.2}
    with pytest.warns(UserWarning, match=r"env\.yaml in pose, expected"):
        noted.warn_of_others(cfg)


def test_what_building_completes_as_in_training_is_no_difference(tmp_path):
    cfg, noted = EnvCfg(), NotedEnv(noted_env(tmp_path, kind="/World/envs/env_.*/Robot"))
    noted.apply(cfg, dataclasses.asdict)
    cfg.kind = "/World/envs/env_.*/Robot"
    noted.warn_of_others(cfg)


def test_settings_of_a_bundle_are_numbers_that_the_task_has(tmp_path, capsys):
    settings: Any = {"kind": "rough", "func": "os:system", "scene": 3, "added": 1, "decimation": 8}
    settings |= {"seed": 9, "pose": {"knee": 0.5, "hip": 2.0, "terrain": {"num_envs": 4096}}}
    pose = {"knee": 0.2, "terrain": {"num_envs": 1}}
    cfg, noted = EnvCfg(pose=pose), NotedEnv(tmp_path, settings)
    noted.apply(cfg, dataclasses.asdict)
    assert cfg == EnvCfg(decimation=8, pose=pose | {"knee": 0.5})
    assert noted.settings == {"decimation": 8, "pose": {"knee": 0.5}}
    with pytest.warns(UserWarning, match=r"in kind, func, scene, pose\.hip, added, expected"):
        noted.warn_of_others(cfg)


def test_what_the_user_overrides_is_left_alone(tmp_path, capsys):
    noted = NotedEnv(noted_env(tmp_path, decimation=8, episode_length_s=2.0))
    cfg = EnvCfg(decimation=4)
    noted.apply(cfg, dataclasses.asdict, EnvCfg())
    assert cfg == EnvCfg(decimation=4, episode_length_s=2.0)
    assert "decimation" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"), [("a: [", "cannot be read: "), ("3", "holds 3, expected a mapping")]
)
def test_a_noted_environment_that_cannot_be_read_is_refused(tmp_path, text, reason):
    (tmp_path / "env.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"env\.yaml' {reason}"):
        NotedEnv(tmp_path / "env.yaml")


def test_mjlab_simulates_what_was_trained_on(tmp_path, registry, monkeypatch):
    built = []

    class Env:
        def __init__(self, cfg, *_, **__):
            built.append(cfg)

        def close(self):
            pass

    module = SimpleNamespace(ManagerBasedRlEnv=Env, RslRlVecEnvWrapper=Env)
    monkeypatch.setattr(mjlab_module, "import_module", lambda _: module)
    monkeypatch.setattr(mjlab_module, "asdict", dataclasses.asdict)
    monkeypatch.setattr(Registry, "load_env_cfg", lambda *_: EnvCfg(), raising=False)
    file = noted_env(tmp_path, decimation=8, seed=9)
    with simulated(mjlab, "Student", noted=NotedEnv(file)):
        assert built[0] == EnvCfg(decimation=8, seed=5, scene=Section(num_envs=2))


def test_cpu_children_get_one_thread_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in child_environment("cuda:0")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert child_environment("cpu")["OMP_NUM_THREADS"] == "8"


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
