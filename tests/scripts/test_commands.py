"""Every script has help, and one policy is trained as in the pipeline."""

import runpy
import sys
from pathlib import Path

import pytest

from scripts.pipeline import one_policy
from scripts.pipeline.experiments import DEMO, FINETUNE, load_experiment
from scripts.pipeline.stages import policy_stages


@pytest.fixture
def script(repository, monkeypatch):
    """Return a function that runs a script in this process and returns the exit status."""
    monkeypatch.setattr("sys.path", [str(repository / "scripts"), *sys.path])

    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(repository / "scripts" / f"{name}.py"), run_name="__main__")
        return end.value.code

    return run


@pytest.fixture
def train(script, monkeypatch):
    """Return a function that runs a script of one training and returns command and folder."""
    seen = []
    monkeypatch.setattr(
        one_policy, "run_shown", lambda command, folder, _: seen.append((command, folder)) or 0
    )

    def run(*arguments):
        assert script(*arguments) == 0
        return seen[-1]

    return run


@pytest.mark.parametrize(
    ("arguments", "agent"),
    [
        (["train", "--policy", "scratch"], "rsl_rl_recurrent_cfg_entry_point"),
        (["distill", "--teacher", "m.pt"], "rsl_rl_distillation_recurrent_cfg_entry_point"),
        (["finetune", "--student", "m.pt"], "rsl_rl_finetune_cfg_entry_point"),
    ],
)
def test_one_policy_is_trained_as_in_the_pipeline(train, tmp_path, arguments, agent):
    command, folder = train(*arguments)
    assert folder.as_posix() == "runs/finetune"
    assert command[command.index("--agent") + 1] == agent
    run_name = command[command.index("--run_name") + 1]
    stages = policy_stages(load_experiment(FINETUNE), "cpu")
    stage = next(stage for stage in stages if stage.name == run_name)
    start = str(Path("m.pt").resolve())
    assert command == stage.command({"teacher": start, "student": start})


def test_the_command_line_overrides_the_experiment(train):
    command, _ = train("train", "--iterations", "3", "agent.algorithm.gamma=0.9")
    assert command[-1] == "agent.algorithm.gamma=0.9"
    assert command[command.index("--max_iterations") + 1] == "3"
    seek = ("--config", str(DEMO.with_name("demo-seek.yaml")), "--teacher", "model_1.pt")
    for given, number in (((), "256"), (("--num-envs", "9"), "9")):
        command, folder = train("distill", *seek, *given)
        assert command[command.index("--num_envs") + 1] == number
        assert folder.as_posix() == "runs/demo-seek"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--policy", "student"], r"expected one of ['teacher', 'scratch']"),
        (["finetune"], "--student"),
        (["train", "--config", "absent.yaml"], "absent.yaml cannot be read"),
    ],
)
def test_wrong_command_line_is_refused(script, capsys, arguments, message):
    assert script(*arguments) == 2
    assert message in capsys.readouterr().err
