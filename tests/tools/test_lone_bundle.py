"""Bundles without their checkpoint: evaluated by what policy.json notes."""

import json
import shutil
from contextlib import contextmanager

import pytest
import torch
from support.helpers import make_distillation
from support.trained import as_a_runner_builds_it
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.platforms import Trained
from rsl_tbptt.tools.platforms import mjlab as mjlab_module
from rsl_tbptt.tools.robot import export

EPISODES = ["--episodes", "4"]


class Env:
    """Episodes of three steps; the reward is the first action, bounded, plus a curriculum's."""

    common_step_counter = 0
    num_actions, device, max_episode_length, step_dt = 3, "cpu", 3, 0.5

    def __init__(self, simulation, width):
        self.num_envs, self.width, self.bound = simulation.num_envs, width, simulation.clip_actions
        self.unwrapped, self.episode = self, torch.zeros(self.num_envs, dtype=torch.long)

    def seed(self, seed):
        torch.manual_seed(seed)

    def reset(self):
        self.episode[:] = 0
        return self.get_observations(), {}

    def get_observations(self):
        return TensorDict({"policy": torch.randn(self.num_envs, self.width)}, [self.num_envs])

    def step(self, actions):
        self.episode += 1
        self.common_step_counter += 1
        dones = self.episode == 3
        self.episode[dones] = 0
        rewards = actions[:, 0].clamp(-self.bound, self.bound)
        rewards += self.common_step_counter
        return self.get_observations(), rewards, dones.long(), {}


def simulate(patch):
    """Replace mjlab's environments; return task and bound of each one, and a width."""
    seen, options = [], {"width": 5}

    @contextmanager
    def simulated_env(_, simulation):
        seen.append((simulation.task, simulation.clip_actions))
        yield Env(simulation, options["width"])

    platform = mjlab_module.Mjlab
    patch.setattr(platform, "simulated_env", simulated_env)
    patch.setattr(platform, "find_trained", lambda *_: Trained("Walk", ""))
    patch.setattr(export, "_can_simulate", lambda *_: True)
    return seen, options


@pytest.fixture
def simulated(monkeypatch):
    return simulate(monkeypatch)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a folder with ``walker``, a bundle of mjlab, and ``run``, its training's folder."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "run" / "params").mkdir(parents=True)
    torch.manual_seed(0)
    algorithm = as_a_runner_builds_it(make_distillation(TbpttDistillation, 4, 2, gradient_length=2))
    saved = {**algorithm.save(), "iter": 0}
    saved["rsl_tbptt"]["env_state"] = {"common_step_counter": 40}
    torch.save(saved, folder / "run" / "model_0.pt")
    (folder / "run" / "params" / "agent.yaml").write_text("clip_actions: 0.05")
    (folder / "run" / "params" / "env.yaml").write_text("sim:\n  mujoco: {}\n")
    words = ["--output", str(folder / "walker"), "--steps", "4"]
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch)
        assert main(["export", "--checkpoint", str(folder / "run" / "model_0.pt"), *words]) == 0
    return folder


@pytest.fixture
def bundle(exported, tmp_path, monkeypatch, simulated):
    """Return the bundle, in a copy of the folder, which is the working directory."""
    monkeypatch.chdir(shutil.copytree(exported, tmp_path / "copy"))
    return tmp_path / "copy" / "walker"


def change(bundle, **entries):
    """Replace entries of ``policy.json``."""
    file = bundle / "policy.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def test_a_bundle_is_evaluated_like_its_checkpoint_without_it(bundle, simulated):
    noted = json.loads((bundle / "policy.json").read_text())
    expected = {"platform": "mjlab", "task": "Walk"}
    assert (noted["simulation"], noted["robot"]["clip_actions"]) == (expected, 0.05)

    assert main(["evaluate", "--checkpoint", "run/model_0.pt", *EPISODES]) == 0
    shutil.rmtree("run/params")
    trained = json.loads((bundle.parent / "run" / "evaluation.json").read_text())
    (bundle.parent / "run" / "model_0.pt").unlink()
    # A bundle of an earlier version notes settings, too.
    change(bundle, simulation=expected | {"settings": {"decimation": 8}})
    assert main(["evaluate", "--policy", "walker", *EPISODES]) == 0
    assert main(["evaluate", "--policy", "walker", "--task", "Run", *EPISODES]) == 0
    assert simulated[0] == [("Walk", 0.05), ("Walk", 0.05), ("Run", 0.05)]
    found = json.loads((bundle / "evaluation.json").read_text())
    assert found.keys() == trained.keys()
    assert found["returns"] == pytest.approx(trained["returns"], abs=1e-5)
    assert found["common_step_counter"] == 40  # its curriculum goes on
    assert found["mean_return"] == pytest.approx(41 + 42 + 43, abs=3 * 0.05)
    assert (found["checkpoint"], found["form"]) == ("model_0.pt", "onnx")


def test_a_bundle_of_an_older_release_needs_platform_and_task(bundle, simulated, capsys):
    change(bundle, simulation=None)
    assert main(["evaluate", "--policy", "walker", *EPISODES]) == 1
    assert "simulation is None in" in capsys.readouterr().err
    assert main(["evaluate", "--policy", "walker", "--platform", "mjlab", *EPISODES]) == 1
    assert "--task (for rsl_rl alone --env), or export" in capsys.readouterr().err
    words = ["--platform", "mjlab", "--task", "Walk", *EPISODES]
    assert main(["evaluate", "--policy", "walker", *words]) == 0
    assert simulated[0] == [("Walk", 0.05)]


NOTED = {"platform": "mjlab", "task": "Walk"}
WRONG_ENTRIES = [
    ({"simulation": "Walk"}, "simulation is 'Walk' in"),
    ({"simulation": NOTED | {"platform": "rsl_rl"}}, "'mjlab', 'envpool'] and the id"),
    ({"simulation": NOTED | {"platform": ["mjlab"]}}, "expected a platform of"),
    ({"simulation": NOTED | {"task": "os:system"}}, "'task': 'os:system'"),
    ({"simulation": NOTED | {"task": None}}, "name the checkpoint with --checkpoint"),
    ({"robot": {"clip_actions": "1"}}, "robot is {'clip_actions': '1'} in"),
    ({"robot": {"clip_actions": -1}}, "robot is {'clip_actions': -1} in"),
    ({"robot": {"clip_actions": True}}, "expected it as `rsl-tbptt export` writes it"),
    ({"checkpoint": "../model_0.pt"}, "checkpoint is '../model_0.pt' in"),
    ({"observation_groups": {}}, "observation_groups is {} in"),
]


@pytest.mark.parametrize(("entries", "message"), WRONG_ENTRIES)
def test_what_a_bundle_tells_is_checked_before_anything_is_simulated(
    bundle, simulated, capsys, entries, message
):
    change(bundle, **entries)
    assert main(["evaluate", "--policy", "walker", *EPISODES]) == 1
    assert message in capsys.readouterr().err
    assert simulated[0] == []


def test_a_task_with_other_observations_is_refused(bundle, simulated, capsys):
    simulated[1]["width"] = 7
    assert main(["evaluate", "--policy", "walker", *EPISODES]) == 1
    expected = "Walk has the observation groups {'policy': [7]}, expected {'policy': [5]} as the"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("evaluate --policy walker --agent a.yaml", "--agent is a.yaml, expected it only next to"),
        ("evaluate", "--checkpoint is missing, expected it or --policy"),
        ("evaluate --policy run", "expected a folder of `rsl-tbptt export`"),
    ],
)
def test_what_is_missing_is_named(bundle, simulated, capsys, line, message):
    assert main(line.split()) == 1
    assert message in capsys.readouterr().err
    assert simulated[0] == []
