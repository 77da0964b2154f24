"""``rsl-tbptt plan``: the table is what updates take, and the answer is what fits."""

import copy
import sys

import pytest
import torch
import yaml
from torch import nn

from rsl_tbptt.core.memory import MemoryPlan, PeakMemory, Sizes
from rsl_tbptt.core.scan import free_buffers
from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.platforms import Trained, load_platform
from rsl_tbptt.tools.simulate.plan import (
    Planned,
    Row,
    answer,
    filled,
    most_envs,
    plan,
    planned,
    roll_out,
)
from rsl_tbptt_tasks.memory import RecallEnv

CLOSE = 0.1
"""Share of the peak by which a plan may be off."""
MODEL = {"class_name": "MLPModel", "hidden_dims": [32]}
MEMORY = {**MODEL, "class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 32}
NOISE = {"class_name": "GaussianDistribution", "init_std": 0.5}
SHARED = {"num_steps_per_env": 24, "save_interval": 50}
PPO = {
    **SHARED,
    "class_name": "OnPolicyRunner",
    "obs_groups": {"actor": ["policy"], "critic": ["privileged"]},
    "algorithm": {"class_name": "rsl_tbptt.algorithms:TbpttPPO", "gradient_length": 12},
    "actor": {**MEMORY, "distribution_cfg": NOISE},
    "critic": MEMORY,
}
DISTILLATION = {
    **SHARED,
    "class_name": "DistillationRunner",
    "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
    "algorithm": {
        "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
        "gradient_length": 12,
        "buffer_rollouts": 3,
    },
    "student": {**MEMORY, "distribution_cfg": NOISE},
    "teacher": {**MODEL, "distribution_cfg": NOISE},
}
AGENTS = {"ppo": PPO, "distillation": DISTILLATION}

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def make_recall(num_envs, seed, device):
    return RecallEnv(num_envs, recall_length=8, device=device, seed=seed)


def of_recall(agent):
    task = f"{__name__}:make_recall"
    return Planned(load_platform("rsl_rl"), Trained(task, ""), agent)


def measured(agent, num_envs):
    """Return the peak of a second update with real environments, and the algorithm."""
    env = make_recall(num_envs, 0, "cpu")
    algorithm = filled(of_recall(agent), env, "cpu")
    algorithm.update()
    roll_out(algorithm, env, agent["num_steps_per_env"])
    free_buffers()
    with PeakMemory() as memory:
        algorithm.update()
    return memory.peak, algorithm


TEACHER = DISTILLATION["teacher"]
SEVERAL = {
    "class_name": "rsl_tbptt.models:SelectedTeachers",
    "selector": f"{__name__}:first_teacher",
    "teachers": {"walk": {"cfg": TEACHER}, "run": {"cfg": TEACHER}},
}


def first_teacher(obs):
    return torch.zeros(len(obs), dtype=torch.int64)


def test_no_file_of_a_teacher_is_needed():
    agent = copy.deepcopy(PPO)
    agent["obs_groups"]["teacher"] = ["privileged"]
    (alone,) = plan(of_recall(agent), [32])
    agent["algorithm"] |= {"teacher_cfg": SEVERAL, "teacher_coef": 0.1}
    (row,) = plan(of_recall(agent), [32])
    assert row.models > alone.models
    assert row.update.peak(1) > 0


def tensor_bytes(values):
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


@pytest.mark.parametrize(
    ("name", "num_envs", "num_micro_batches"),
    [
        ("ppo", 200, 1),
        ("ppo", 1024, 4),
        ("distillation", 200, 1),
        ("distillation", 1024, 4),
    ],
)
def test_the_plan_is_what_a_real_update_takes(name, num_envs, num_micro_batches):
    agent = copy.deepcopy(AGENTS[name])
    (row,) = plan(of_recall(agent), [num_envs])
    agent["algorithm"]["num_micro_batches"] = num_micro_batches
    peak, algorithm = measured(agent, num_envs)
    assert row.update.peak(num_micro_batches) == pytest.approx(peak, rel=CLOSE)
    storage = algorithm.storage
    assert row.storage >= tensor_bytes([*vars(storage).values(), *storage.observations.values()])
    modules = [*algorithm.transaction.modules, *([algorithm.teacher] if name != "ppo" else [])]
    kept = tensor_bytes(value for module in modules for value in module.state_dict().values())
    moments = tensor_bytes(v for s in algorithm.optimizer.state.values() for v in s.values())
    average = algorithm.save()["rsl_tbptt"].get("weight_average", {"newest": {}})
    weights = 2 * tensor_bytes(average["newest"].values())  # the newest and their average
    assert row.models == pytest.approx(kept + moments + weights, rel=0.01)
    if name == "distillation":
        buffer = algorithm.experience.buffer
        assert row.update.sizes.replay_buffer == pytest.approx(
            tensor_bytes([*buffer._tensors.values(), buffer._keys]), rel=0.1
        )


def row(num_envs, per_env=1e6):
    """Return a row in which an environment takes some bytes while its micro-batch runs."""
    sizes = Sizes(num_envs, least_micro_batches=1, replay_buffer=1e9)
    return Row(num_envs, MemoryPlan(sizes, 0.0, 5e8, 0.0, per_env), storage=3e8, models=2e8)


def test_what_fits_is_on_the_line_through_the_rows():
    rows = [row(1000), row(2000)]
    assert rows[0].total(1) == pytest.approx(3e9)
    assert rows[0].total(4) == pytest.approx(2.25e9)
    assert most_envs(rows, 1, 3.5e9) == 1500
    assert most_envs(rows, 1, 12e9) == 10000
    assert most_envs(rows, 1, 2.9e9) == 0
    assert most_envs(rows[:1], 1, 12e9) == 1000
    assert rows[0].micro_batches(2.4e9) == 3
    assert rows[0].micro_batches(1.9e9) is None
    assert answer(rows, 2.6) == (
        "2.6 GB: about 1200 with num_micro_batches=2, 2400 with num_micro_batches=4, 4800 with"
        " num_micro_batches=8. The simulator's memory comes on top."
    )
    assert "about 10500 with num_micro_batches=1," in answer(rows, 12.555)
    assert answer(rows, 1.0) == "1 GB: not even 1000 environments fit."


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "recall_envs.py").write_text(
        "from rsl_tbptt_tasks.memory import RecallEnv\n\n\n"
        "def make(num_envs, seed, device):\n    return RecallEnv(num_envs, recall_length=8)\n"
    )
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(PPO))
    return tmp_path


def test_the_command_prints_table_and_answer(folder, capsys):
    words = ["plan", "--env", "recall_envs:make", "--agent", "ppo.yaml", "--num-envs"]
    assert main([*words, "64", "32", "64", "--budget", "1"]) == 0  # 64 is planned once
    head, _, _, *rows, _, fits, of_device = capsys.readouterr().out.splitlines()
    assert head.startswith("MB of recall_envs:make")
    assert [line.split()[0] for line in rows] == ["32", "64"]
    assert fits.startswith("1 GB: about ")
    assert of_device.startswith("A GPU computes larger parts")


WRONG = {
    "plan": "--task is missing, expected it or --checkpoint or --env",
    "plan --env recall_envs:make": "--agent is missing, expected with --env a YAML file",
    "plan --env recall_envs:make --task T": "expected one of both",
    "plan --env recall_envs:make --agent ppo.yaml --num-envs 0": "--num-envs is 0",
    "plan --env recall_envs:make --agent stock.yaml": "The algorithm is PPO, expected one with a",
    "plan --env recall_envs:make --agent norm.yaml": "has a BatchNorm1d, expected a model without",
    "plan --checkpoint run/model_0.pt": "names 'my_code:Model' as class_name, expected a",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items(), ids=WRONG.keys())
def test_what_cannot_be_planned_is_said_in_one_line(folder, monkeypatch, capsys, line, message):
    stock = PPO | {"algorithm": {"class_name": "PPO"}}
    (folder / "stock.yaml").write_text(yaml.safe_dump(stock))
    (folder / "norm.yaml").write_text(yaml.safe_dump(PPO))
    (folder / "run" / "params").mkdir(parents=True)
    (folder / "run" / "model_0.pt").touch()
    (folder / "run" / "run.json").write_text('{"library": "rsl_rl", "task": "Tbptt-T"}')
    run = PPO | {"actor": {**MODEL, "class_name": "my_code:Model"}}
    (folder / "run" / "params" / "agent.yaml").write_text(yaml.safe_dump(run))
    if "norm" in line:
        make = type(load_platform("rsl_rl")).make_runner

        def with_batch_norm(*arguments):
            runner = make(*arguments)
            runner.alg.actor.mlp.append(nn.BatchNorm1d(1))
            return runner

        monkeypatch.setattr(type(load_platform("rsl_rl")), "make_runner", with_batch_norm)
    assert main(line.split()) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_checkpoint_brings_task_agent_and_environment(folder):
    (folder / "params").mkdir()
    for name, config in (("agent", PPO), ("env", {"decimation": 2})):
        (folder / "params" / f"{name}.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text('{"library": "rsl_rl", "task": "Tbptt-T"}')
    (folder / "model_0.pt").touch()
    what = planned(folder / "model_0.pt")
    assert what.platform.TITLE == "Isaac Lab"
    assert what.task == Trained("Tbptt-T", "rsl_rl_cfg_entry_point")
    assert what.agent == PPO
    assert what.noted == folder / "params" / "env.yaml"
    assert planned(folder / "model_0.pt", platform_name="rsl_rl", task="m:f").task.task == "m:f"


@pytest.mark.parametrize(
    "section",
    [
        {"actor": {**MODEL, "class_name": "os:path.join"}},
        {"actor": {**MODEL, "distribution_cfg": {"class_name": "rsl_rl.utils:git.Repo"}}},
        {"algorithm": {**PPO["algorithm"], "symmetry_cfg": {"data_augmentation_func": "a-b:c.d"}}},
        {"teacher": {"teachers": [{"cfg": {"class_name": "resolve_callable"}}]}},
    ],
    ids=str,
)
def test_a_runs_config_cannot_name_code_of_others(folder, section):
    (folder / "params").mkdir()
    (folder / "params" / "agent.yaml").write_text(yaml.safe_dump(PPO | section))
    (folder / "run.json").write_text('{"library": "rsl_rl", "task": "Tbptt-T"}')
    (folder / "model_0.pt").touch()
    with pytest.raises(ValueError, match=r"names '.*' as .*, expected a class of rsl_rl or this"):
        planned(folder / "model_0.pt")


def test_names_of_runs_and_files_are_not_taken_for_code(folder):
    (folder / "params").mkdir()
    names = {"load_checkpoint": "model_100.pt", "run_name": "student_v1.2"}
    run = {**DISTILLATION, **names, "experiment_name": "go1.v2"}
    run["algorithm"] = {**run["algorithm"], "teacher_checkpoint": "teacher.pt"}
    run["teacher"] = {"teachers": {"walk": {"cfg": MODEL, "checkpoint": "walk.pt"}}}
    (folder / "params" / "agent.yaml").write_text(yaml.safe_dump(run))
    (folder / "run.json").write_text('{"library": "rsl_rl", "task": "Tbptt-T"}')
    (folder / "model_0.pt").touch()
    assert planned(folder / "model_0.pt").agent == run


def test_the_task_is_looked_for_on_the_platform_that_is_installed(monkeypatch):
    monkeypatch.setattr(
        type(load_platform("isaaclab")), "registered_agent", lambda self, trained: {"of": trained}
    )
    what = planned(None, task="Tbptt-T")
    assert what.agent == {"of": Trained("Tbptt-T", "rsl_rl_cfg_entry_point")}
    monkeypatch.setattr("rsl_tbptt.tools.simulate.plan.installed_version", lambda name: None)
    with pytest.raises(ValueError, match="Neither Isaac Lab nor mjlab is installed"):
        planned(None, task="T")
