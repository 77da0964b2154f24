"""``rsl-tbptt latest`` and ``resume``: which checkpoint, how many iterations, which command."""

import json
import shlex
import subprocess
import sys

import pytest
import torch
import yaml

from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.platforms import Trained, Training, load_platform
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
    for folder, message in (
        (tmp_path, "holds no valid checkpoint"),
        (tmp_path / "no", "not exist"),
    ):
        assert main([command, str(folder)]) == 1
        shown = capsys.readouterr()
        assert message in shown.err
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
@pytest.mark.parametrize(("has_gpu", "expected"), [(True, "cuda:1"), (False, "cpu")])
def test_run_runs_it_where_the_training_logs(run, settings, monkeypatch, capsys, has_gpu, expected):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(
        "rsl_tbptt.tools.platforms.run_shown", lambda *arguments: seen.append(arguments) or 7
    )
    assert main(["resume", str(run), "--run"]) == 7
    [(command, folder, device)] = seen
    assert (command[0], folder, device) == ("isaaclab", run.parents[3], expected)
    assert f"agent.device={expected}" in command
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("This machine has no GPU, so it uses the CPU." in shown.err) == (not has_gpu)


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


def test_no_or_fewer_iterations_are_refused(run, settings, capsys):
    save(run, "model_20.pt", 20)
    assert main(["resume", str(run), "--iterations", "-5"]) == 1
    assert "--iterations is -5, expected at least 1" in capsys.readouterr().err


def noted(folder, agent, found, env=None, found_env=None):
    """Return what a training changed, and the names of what no option can set."""
    (folder / "params").mkdir()
    for name, config in {"agent": found, "env": found_env or {}}.items():
        (folder / "params" / f"{name}.yaml").write_text(yaml.dump(config, sort_keys=False))
    return noted_settings(folder, {"agent": agent, "env": env or {}}, dict)


def test_what_a_training_changed_are_plain_values_and_the_names_of_others(tmp_path):
    agent = {"seed": 1, "rate": 0.1, "loss": "mse", "sizes": (8, 8), "cfg": None, "gone": 1}
    agent |= {"kind": "RNNModel", "code": "RNNModel"}
    env = {"scene": {"num_envs": 2, "kind": "plane"}, "decimation": 4, "limits": [0.0, 1.0]}
    found = agent | {"seed": 2, "rate": 0.2, "loss": "bce", "sizes": (4,), "cfg": {"a": 1}}
    found |= {"kind": "rsl_tbptt.algorithms:TbpttPPO", "code": "os.path:join"}
    del found["gone"]
    rough = env | {"scene": {"num_envs": 9, "kind": "rough"}, "limits": [0.0, None], "new": 1}
    values, others = noted(tmp_path, agent, found, env, rough)
    assert values == {
        "agent.rate": 0.2,
        "agent.loss": "bce",
        "agent.sizes": (4,),
        "agent.kind": "rsl_tbptt.algorithms:TbpttPPO",
        "env.limits": [0.0, None],
    }
    assert others == ["agent.cfg", "agent.code", "agent.gone", "env.scene.kind", "env.new"]


VALUES = {
    "agent.rate": 1e-05,
    "agent.clip": None,
    "agent.check": True,
    "agent.sizes": (64, 32),
    "agent.loss": "it's 1, 2",
    "agent.kind": "my.module:Kind",
    "agent.number": "12",
}


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        (
            isaaclab,
            [
                *("agent.rate=1e-05", "agent.clip=null", "agent.check=True", "agent.sizes=[64,32]"),
                *(r"agent.loss='it\'s 1, 2'", "agent.kind=my.module:Kind", "agent.number='12'"),
            ],
        ),
        (
            mjlab,
            [
                *("--agent.rate", "1e-05", "--agent.clip", "None", "--agent.check", "True"),
                *("--agent.sizes", "(64, 32)", "--agent.loss", "it's 1, 2"),
                *("--agent.kind", "my.module:Kind", "--agent.number", "12"),
            ],
        ),
    ],
)
def test_settings_are_written_in_the_platforms_form(platform, expected):
    training = Training(
        task="Tbptt-T", agent="", num_envs=1, iterations=1, seed=0, run_name="r", settings=VALUES
    )
    command = platform.train_command(training, device="cpu")
    start = command.index(expected[0])
    assert command[start : start + len(expected)] == expected


def test_mjlab_looks_in_the_folder_that_the_run_lies_in(run, monkeypatch):
    class Registry:
        load_env_cfg = staticmethod(lambda _: ENV)
        load_rl_cfg = staticmethod(lambda _: Agent(AGENT))

    class Agent(dict):
        experiment_name = "other"

    module = "rsl_tbptt.tools.platforms.mjlab"
    monkeypatch.setattr(f"{module}._registry", Registry)
    monkeypatch.setattr(f"{module}.asdict", dict)
    values, others = mjlab.noted_settings(run, Trained("T", ""))
    assert (values, others) == ({"agent.experiment_name": "cart"}, [])


FOREIGN = {
    "an attribute": "os:path.join",
    "an import of ours": "rsl_tbptt.tools.commands.cli:importlib.import_module",
    "an import of rsl_rl": "rsl_rl.models.mlp_model:torch.hub.load",
    "with dots": "rsl_rl.models.mlp_model.torch.hub.load",
    "a file's name": "my-code:run",
    "a path's start": "my_code.a/b",
    "a program of ours": "rsl_tbptt.tools.robot.c_code:CPolicy",
    "an option": "--agent.class-name",
    "a reference": "${oc.env:HOME}",
    "nested": ["mse", ["os:path.join"]],
}


@pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_runs_config_cannot_name_code_of_others(value, tmp_path):
    agent = {"algorithm": {"class_name": "PPO", "loss": "mse", "losses": ["mse"]}}
    found = {"class_name": value, "loss": value, "losses": [value], "added": value}
    values, others = noted(tmp_path, agent, {"algorithm": found})
    assert values == {}
    assert {*others} == {f"agent.algorithm.{name}" for name in found}


def test_a_simple_class_name_is_that_of_a_class_and_a_path_that_of_a_file(tmp_path):
    agent = {"class_name": "OnPolicyRunner", "teacher": "none", "logger": {"class_name": "X"}}
    found = {
        "class_name": "resolve_callable",
        "teacher": "logs/rsl_rl/1.0/model_9.pt",
        "logger": {"class_name": "rsl_tbptt.models.RecurrentModel"},
    }
    values, others = noted(tmp_path, agent, found)
    assert values == {
        "agent.teacher": found["teacher"],
        "agent.logger.class_name": "rsl_tbptt.models.RecurrentModel",
    }
    assert others == ["agent.class_name"]


WRONG_TYPES = {
    "max_iterations": ("many", "max_iterations is 'many' in "),
    "seed": ([1], r"seed is [1] in "),
    "device": ("cuda:0 agent.class_name=x", "device is 'cuda:0 agent.class_name=x' in "),
    "run_name": (3, "run_name is 3 in "),
    "algorithm": ("PPO", "algorithm is 'PPO' in "),
}


@pytest.mark.filterwarnings("ignore:Passed over a checkpoint")
@pytest.mark.parametrize("name", WRONG_TYPES)
@pytest.mark.parametrize("command", ["resume", "report"])
def test_values_of_other_types_are_named_in_one_line(command, name, run, settings, capsys):
    value, message = WRONG_TYPES[name]
    note(run, AGENT | {name: value})
    assert main([command, str(run)]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert "agent.yaml, expected" in shown.err
    assert shown.out == ""
