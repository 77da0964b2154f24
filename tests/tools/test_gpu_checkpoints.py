"""On a machine without a GPU, runners and commands read what a GPU's training wrote."""

import pytest
import torch
from support.gpu_checkpoints import as_on_a_gpu, check_refused, without_gpu
from support.safe_runs import RUNNERS, make_runner, teacher_cfg

from rsl_tbptt.tools.commands.cli import main

pytestmark = [without_gpu, pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")]

ENV = ["--env", "support.gpu_checkpoints:make_env"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a teacher, its student, and recurrent PPO, all as on a GPU."""
    folder = tmp_path_factory.mktemp("runs")
    with as_on_a_gpu():
        make_runner(folder / "teacher", "ppo", **teacher_cfg()).learn(1)
        make_runner(folder / "ppo", "ppo").learn(1)
        student = make_runner(folder / "distillation")
        student.load(str(folder / "teacher" / "model_0.pt"))
        student.learn(1)
    for path in folder.glob("*/model_0.pt"):
        check_refused(path)
    return folder


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_resumed_training_has_all_tensors_on_its_device(runs, kind, tmp_path):
    runner = make_runner(tmp_path, kind)
    runner.load(str(runs / kind))
    assert runner.num_iterations == 1
    moments = [v for state in runner.alg.optimizer.state.values() for v in state.values()]
    assert {moment.device.type for moment in moments if torch.is_tensor(moment)} == {"cpu"}
    runner.learn(1)
    assert (tmp_path / "model_1.pt").is_file()


def test_a_named_teacher_and_a_student_for_ppo_are_read(runs, tmp_path):
    teacher = str(runs / "teacher" / "latest")
    make_runner(tmp_path / "student", algorithm={"teacher_checkpoint": teacher}).learn(1)
    tuned = make_runner(tmp_path / "tuned", "ppo")
    tuned.load(str(runs / "distillation"))
    tuned.learn(1)


COMMANDS = {
    "evaluate": ["evaluate", "--checkpoint", "FILE", *ENV, "--episodes", "4", "--output", "e.json"],
    "memory": ["memory", "FILE", *ENV, "--num-envs", "8"],
    "export": ["export", "--checkpoint", "FILE", *ENV, "--steps", "5", "--output", "bundle"],
    "latest": ["latest", "RUN"],
}


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("command", COMMANDS)
def test_command_reads_it(runs, kind, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = runs / kind
    words = [word.replace("FILE", f"{run}/model_0.pt") for word in COMMANDS[command]]
    words = [word.replace("RUN", str(run)) for word in words]
    assert main(words) == 0, capsys.readouterr().err
    if command == "export":
        bundle = ["--policy", "bundle", "--checkpoint", f"{run}/model_0.pt", *ENV]
        assert main(["verify", "bundle"]) == 0
        assert main(["evaluate", *bundle, "--episodes", "4", "--output", "b.json"]) == 0
