"""Train the agents of the recipes as printed, on the memory task with the robot's groups."""

import re
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

from isaaclab_rl.rsl_rl import handle_deprecated_rsl_rl_cfg
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.fine_tuning import save_untrained

from rsl_tbptt_tasks.memory import RecallEnv

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "recipes.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
N = 8
LOSSES = ModuleType("my_losses")
"""The page's file with a loss."""
(_losses,) = (block for block in BLOCKS if block.startswith("# my_losses.py"))
exec(compile(_losses, "my_losses.py", "exec"), vars(LOSSES))

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


class Robot(RecallEnv):
    """The recall task with seven joints, a gripper and the recipes' observations."""

    def __init__(self) -> None:
        super().__init__(N, recall_length=3)
        self.num_actions = 8

    def get_observations(self):
        obs = super().get_observations()
        obs["object"] = torch.randn(self.num_envs, 3)
        return obs

    def step(self, actions):
        return super().step(actions[:, :1])


def recipe(name: str, folder: Path) -> Any:
    """Return a config of the page with its files in a folder; the first block has imports."""
    names: dict[str, Any] = {"__name__": __name__}
    (own,) = (block for block in BLOCKS if f"class {name}(" in block)
    for block in (BLOCKS[0], own):
        exec(compile(block.replace('"logs/', f'"{folder}/'), PAGE.name, "exec"), names)
    return handle_deprecated_rsl_rl_cfg(names[name](), version("rsl-rl-lib")).to_dict()


def write_teacher(path: Path, model: dict[str, Any]) -> None:
    """Write a checkpoint as PPO saves it for a teacher with this model."""
    groups = ["policy", "privileged"]
    critic = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu"}
    cfg = {
        "num_steps_per_env": 4,
        "save_interval": 1000,
        "obs_groups": {"actor": groups, "critic": groups},
        "actor": model,
        "critic": critic,
        "algorithm": {"class_name": "PPO"},
    }
    path.parent.mkdir()
    save_untrained(OnPolicyRunner(Robot(), cfg, log_dir=None), path)


TEACHERS = {
    "TwistStudentCfg": {"teacher/model_1499.pt": lambda cfg: cfg["algorithm"]["teacher_cfg"]},
    "StackStudentCfg": {"teacher/model_1499.pt": lambda cfg: cfg["teacher"]},
}
REPORTED = {
    "TwistStudentCfg": {"surrogate", "teacher", "teacher_coef"},
    "StackStudentCfg": {"behavior", "auxiliary/object"},
}


def test_every_recipe_of_the_page_is_here():
    assert re.findall(r"^class (\w+Cfg)", "".join(BLOCKS), flags=re.MULTILINE) == [*TEACHERS]


@pytest.mark.parametrize("name", TEACHERS)
def test_a_recipe_trains_as_printed(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, LOSSES.__name__, LOSSES)
    for file, model in TEACHERS[name].items():
        write_teacher(tmp_path / file, model(recipe(name, tmp_path)))
    cfg = recipe(name, tmp_path)
    runners: dict[str, Any] = {each.__name__: each for each in (DistillationRunner, OnPolicyRunner)}
    runner = runners[cfg["class_name"]](Robot(), cfg, log_dir=None)
    metrics, update = [], runner.alg.update
    runner.alg.update = lambda: update() | (metrics.append(runner.alg.metrics) or {})
    runner.learn(2)
    for reported in metrics:
        assert reported["skipped_updates"] == 0
        assert REPORTED[name] <= reported.keys()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_the_controller_of_the_page_runs_both_experts_and_selects(tmp_path):
    (block,) = (block for block in BLOCKS if block.startswith("# my_experts.py"))
    exec(compile(block, "my_experts.py", "exec"), names := {})
    experts = {name: torch.nn.Linear(5, 2) for name in ("walk", "climb")}
    files = {name: str(tmp_path / f"{name}.pt") for name in experts}
    for name, expert in experts.items():
        torch.jit.trace(expert, torch.zeros(1, 5)).save(files[name])
    controller = names["TwoExperts"](SimpleNamespace(device="cpu"), **files)
    obs = {"policy": torch.randn(N, 2), "privileged": torch.randn(N, 3)}
    obs["skill"] = torch.arange(N).unsqueeze(1) % 2.0
    seen = torch.cat((obs["policy"], obs["privileged"]), dim=1)
    expected = experts["walk"](seen)
    expected[1::2] = experts["climb"](seen[1::2])
    torch.testing.assert_close(controller(obs), expected)
