"""``rsl-tbptt latest`` and ``resume``: which checkpoint, how many iterations, which command."""

import json
import shlex
import subprocess
import sys

import pytest
import torch
import yaml

from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.platforms import load_platform
from rsl_tbptt.tools.platforms.noted import noted_settings
from rsl_tbptt.tools.runs import resume
from rsl_tbptt.tools.runs.resume import RunFacts

isaaclab, mjlab = load_platform("isaaclab"), load_platform("mjlab")

AGENT = {
    "seed": 7,
    "device": "cuda:1",
    "max_iterations": 40,
    "run_name": "student",
    "load_checkpoint": "model_.*.pt",
    "algorithm": {"class_name": "rsl_tbptt.algorithms:TbpttPPO", "gradient_length": 16},
}
ENV = {"scene": {"num_envs": 64}, "decimation": 4, "log_dir": "/somewhere"}


def save(folder, name, iteration):
    torch.save({"iter": iteration, "actor_state_dict": {"w": torch.ones(1)}}, folder / name)


@pytest.fixture
def run(tmp_path):
    """The log folder of a training of Isaac Lab that was killed while it saved."""
    folder = tmp_path / "logs" / "rsl_rl" / "cart" / "2026-01-02_03-04-05_student"
    (folder / "params").mkdir(parents=True)
    note(folder, AGENT)
    (folder / "params" / "env.yaml").write_text(yaml.safe_dump(ENV))
    manifest = {"library": "rsl_rl", "task": "Tbptt-Cart", "metadata": {"agent": "recurrent"}}
    (folder / "run.json").write_text(json.dumps(manifest))
    for iteration in (0, 10, 20):
        save(folder, f"model_{iteration}.pt", iteration)
    whole = (folder / "model_20.pt").read_bytes()
    (folder / "model_20.pt").write_bytes(whole[: len(whole) // 2])
    return folder


def note(folder, agent):
    (folder / "params" / "agent.yaml").write_text(yaml.safe_dump(agent))


@pytest.fixture
def settings(monkeypatch):
    """Settings that the training had changed, and those that no option can set."""
    found = {"agent.algorithm.gradient_length": 16}, []

    def look_up(*_):
        print("# as simulators do")  # noqa: T201
        return found

    monkeypatch.setattr(type(isaaclab), "noted_settings", look_up)
    return found


def test_latest_prints_a_path_and_nothing_else(run):
    command = [sys.executable, "-m", "rsl_tbptt.tools.commands.cli", "latest", str(run)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{run / 'model_10.pt'}\n"
    assert "Passed over a checkpoint" in shown.stderr
    save(run, "safe_13.pt", 13)
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{run / 'safe_13.pt'}\n"


@pytest.mark.filterwarnings("ignore:Passed over a checkpoint")
@pytest.mark.parametrize("command", ["latest", "resume"])
def test_a_folder_without_a_checkpoint_is_named(command, tmp_path, capsys):
    (tmp_path / "model_3.pt").write_bytes(b"half")
    assert main([command, str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "holds no valid checkpoint" in shown.err
    assert shown.out == ""


@pytest.mark.filterwarnings("ignore:Passed over a checkpoint")
def test_the_command_goes_on_to_the_end_of_the_training(run, settings, capsys, monkeypatch):
    settings[1].append("env.scene.robot")
    monkeypatch.setattr(resume, "executable", lambda words: ["/bin/isaaclab", *words[1:]])
    monkeypatch.setattr(resume.shutil, "which", lambda program: None)
    assert main(["resume", str(run)]) == 0
    shown = capsys.readouterr()
    (line,) = shown.out.splitlines()
    folder = run.parents[3]
    assert shlex.split(line) == [
        *("cd", str(folder), "&&", "/bin/isaaclab", "train", "--rl_library", "rsl_rl"),
        *("--task", "Tbptt-Cart", "--agent", "recurrent", "--checkpoint", str(run / "model_10.pt")),
        *("--num_envs", "64", "--max_iterations", "29", "--seed", "7"),
        *("--run_name", "student_resumed", "physics=newton_mjwarp", "--device", "cuda:1"),
        *("agent.device=cuda:1", "agent.algorithm.gradient_length=16"),
    ]
    assert "numbers the first of them 10 again and the last 38;" in shown.err
    assert "(a preset, for example): env.scene.robot." in shown.err
    assert all(text.startswith("# ") for text in shown.err.splitlines())
    monkeypatch.chdir(folder)
    (run / "videos" / "train").mkdir(parents=True)
    assert main(["resume", str(run), "--iterations", "5", "--task", "Mine"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[:2] == ["/bin/isaaclab", "train"]
    assert {"Mine", "--video"} <= {*words}
    assert words[words.index("--max_iterations") + 1] == "5"


@pytest.mark.filterwarnings("ignore:Passed over a checkpoint")
def test_run_runs_it_where_the_training_logs(run, settings, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(
        "rsl_tbptt.tools.platforms.run_shown", lambda *arguments: seen.append(arguments) or 7
    )
    assert main(["resume", str(run), "--run"]) == 7
    [(command, folder, device)] = seen
    assert (command[0], folder, device) == ("isaaclab", run.parents[3], "cuda:1")
    assert capsys.readouterr().out == ""


def test_a_complete_training_says_how_to_go_on(run, settings, capsys):
    save(run, "model_39.pt", 39)
    assert main(["resume", str(run)]) == 1
    assert "model_39.pt is the last of 40 iterations, expected some" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Passed over a checkpoint")
def test_rsl_rl_alone_is_told_what_to_do(run, capsys):
    (run / "run.json").unlink()
    assert main(["resume", str(run)]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert f"runner.load('{run / 'model_10.pt'}') before runner.learn" in shown.err


@pytest.mark.parametrize(
    ("loaded", "resumes", "files", "expected"),
    [
        ("model_.*.pt", False, (0, 10), 39),
        ("model_.*.pt", True, (0, 10), 39),  # a teacher in mjlab
        ("model_.*.pt", True, (100, 150), 139),  # the numbers go on
        ("/r/1_teacher/model_9.pt", False, (0, 10), 39),  # a teacher: the student began with 0
        ("/r/1_student/model_20.pt", False, (20, 30), 59),  # the numbers go on
        ("/r/1_student/safe_23.pt", False, (30,), 62),
    ],
)
def test_the_last_iteration_counts_from_the_checkpoint_that_the_training_loaded(
    tmp_path, loaded, resumes, files, expected
):
    for number in files:
        (tmp_path / f"model_{number}.pt").touch()
    facts = RunFacts(tmp_path)
    facts.agent = AGENT | {"load_checkpoint": loaded, "resume": resumes}
    assert facts.last_iteration() == expected


def test_what_a_training_changed_are_plain_values_and_the_names_of_others(tmp_path):
    agent = {"seed": 1, "rate": 0.1, "loss": "mse", "sizes": (8, 8), "cfg": None, "gone": 1}
    agent |= {"kind": "RNNModel", "code": "RNNModel"}
    env = {"scene": {"num_envs": 2, "kind": "plane"}, "decimation": 4, "limits": [0.0, 1.0]}
    changed = {
        "agent": agent | {"seed": 2, "rate": 0.2, "loss": "bce", "sizes": (4,), "cfg": {"a": 1}},
        "env": env | {"scene": {"num_envs": 9, "kind": "rough"}, "limits": [0.0, None], "new": 1},
    }
    changed["agent"] |= {"kind": "rsl_tbptt.algorithms:TbpttPPO", "code": "os.path:join"}
    del changed["agent"]["gone"]
    (tmp_path / "params").mkdir()
    for name, config in changed.items():
        (tmp_path / "params" / f"{name}.yaml").write_text(yaml.dump(config, sort_keys=False))
    values, others = noted_settings(tmp_path, {"agent": agent, "env": env}, dict)
    assert values == {
        "agent.rate": 0.2,
        "agent.loss": "bce",
        "agent.sizes": (4,),
        "agent.kind": "rsl_tbptt.algorithms:TbpttPPO",
        "env.limits": [0.0, None],
    }
    assert others == ["agent.cfg", "agent.code", "agent.gone", "env.scene.kind", "env.new"]


FOREIGN = {
    "an import of ours": "rsl_tbptt.tools.commands.cli:importlib.import_module",
    "with dots": "rsl_rl.models.mlp_model.torch.hub.load",
    "an option": "--agent.class-name",
    "a reference": "${oc.env:HOME}",
    "nested": ["mse", ["os:path.join"]],
}


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_runs_config_cannot_name_code_of_others(value, tmp_path):
    agent = {"algorithm": {"class_name": "PPO", "loss": "mse", "losses": ["mse"]}}
    found = {"class_name": value, "loss": value, "losses": [value], "added": value}
    (tmp_path / "params").mkdir()
    note(tmp_path, {"algorithm": found})
    (tmp_path / "params" / "env.yaml").write_text("{}")
    values, others = noted_settings(tmp_path, {"agent": agent, "env": {}}, dict)
    assert values == {}
    assert {*others} == {f"agent.algorithm.{name}" for name in found}


WRONG_TYPES = {
    "max_iterations": ("many", "max_iterations is 'many' in "),
    "device": ("cuda:0 agent.class_name=x", "device is 'cuda:0 agent.class_name=x' in "),
}


@pytest.mark.filterwarnings("ignore:Passed over a checkpoint")
@pytest.mark.parametrize("name", WRONG_TYPES)
def test_values_of_other_types_are_named_in_one_line(name, run, settings, capsys):
    value, message = WRONG_TYPES[name]
    note(run, AGENT | {name: value})
    assert main(["resume", str(run)]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert "agent.yaml, expected" in shown.err
    assert shown.out == ""
