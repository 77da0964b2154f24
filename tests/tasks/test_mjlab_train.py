"""The commands of docs/mjlab.md: mjlab's own train and play, as they stand there but shorter."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "mjlab.md").read_text()
CARTPOLE, GO1 = "tbptt_cartpole_occluded", "tbptt_go1_flat"
PLACEHOLDERS = {
    "TEACHER": f"logs/rsl_rl/{CARTPOLE}/*_teacher/model_1.pt",
    "STUDENT": f"logs/rsl_rl/{CARTPOLE}/*_student/model_1.pt",
    "FINETUNED": f"logs/rsl_rl/{CARTPOLE}/*_finetuned/model_1.pt",
}
"""Words that stand for a checkpoint, and where it is found."""
SMALL = {
    "train": (
        *("--env.scene.num-envs", "8", "--agent.max-iterations", "2", "--gpu-ids", "None"),
        *("--agent.logger", "tensorboard"),
    ),
    "play": ("--num-envs", "4"),
}


def page_commands():
    """Return the page's commands by their comments."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [line.rsplit("  # ", 1) for line in lines if line.startswith(("train ", "play "))]
    assert len({comment for _, comment in commands}) == len(commands)
    return {comment: shlex.split(command) for command, comment in commands}


def smaller(command):
    """Return a command with options that make it short; those of the page give way."""
    words, small = [PLACEHOLDERS.get(word, word) for word in command], SMALL[command[0]]
    for option in small[::2]:
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    return [*words, *small]


COMMANDS = page_commands() | {
    "teacher plays": ["play", "Tbptt-Cartpole-Occluded-Teacher", "--checkpoint-file", "TEACHER"],
    "PPO plays": ["play", "Tbptt-Cartpole-Occluded-Recurrent", "--checkpoint-file", "FINETUNED"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mjlab")


@pytest.fixture(scope="module")
def outputs(folder):
    """What every command printed, by its name above."""
    (folder / "commands.json").write_text(
        json.dumps([smaller(command) for command in COMMANDS.values()])
    )
    result = subprocess.run(
        [sys.executable, TESTS / "mjlab_process.py", "commands.json"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    texts = re.split(r"^COMMAND \d+: .*$", result.stdout, flags=re.MULTILINE)[1:]
    return dict(zip(COMMANDS, texts, strict=True))


@pytest.fixture(scope="module")
def checkpoint(folder, outputs):
    def read(experiment, run_name):
        (path,) = folder.glob(f"logs/rsl_rl/{experiment}/*_{run_name}/model_1.pt")
        return torch.load(path, weights_only=True)

    return read


@pytest.mark.parametrize("name", [name for name, words in COMMANDS.items() if words[0] == "train"])
def test_stock_command_trains_to_its_end(outputs, name):
    assert "Learning iteration 1/2" in outputs[name]
    assert "ONNX export failed" not in outputs[name]


def equal(loaded, trained):
    assert loaded.keys() == trained.keys()
    return all(torch.equal(loaded[name], trained[name]) for name in trained)


@pytest.mark.parametrize("experiment", [CARTPOLE, GO1])
def test_resumed_run_gives_the_student_its_teacher(checkpoint, experiment):
    teacher, student = checkpoint(experiment, "teacher"), checkpoint(experiment, "student")
    assert equal(student["teacher_state_dict"], teacher["actor_state_dict"])
    assert "rnn.rnn.weight_hh_l0" in student["student_state_dict"]
    steps = {int(state["step"]) for state in student["optimizer_state_dict"]["state"].values()}
    assert min(steps) > 1


def test_teacher_checkpoint_alone_gives_the_student_its_teacher(checkpoint):
    teacher, memoryless = checkpoint(CARTPOLE, "teacher"), checkpoint(CARTPOLE, "memoryless")
    assert equal(memoryless["teacher_state_dict"], teacher["actor_state_dict"])


def test_state_of_the_environment_is_kept(checkpoint):
    for run_name in ("teacher", "student"):
        counter = checkpoint(CARTPOLE, run_name)["infos"]["env_state"]["common_step_counter"]
        assert counter > 0


def test_ppo_goes_on_with_the_student(checkpoint):
    finetuned = checkpoint(CARTPOLE, "finetuned")
    assert finetuned["rsl_tbptt"]["fine_tuning"]["num_updates"] == 2
    student = checkpoint(CARTPOLE, "student")["student_state_dict"]
    assert finetuned["actor_state_dict"].keys() == student.keys()


def played(outputs, name):
    (line,) = re.findall(r"^PLAYED (.*)$", outputs[name], flags=re.MULTILINE)
    return json.loads(line)


def test_teacher_plays(outputs):
    assert all(step["blank"] is None for step in played(outputs, "teacher plays"))


@pytest.mark.parametrize("name", ["plays", "PPO plays"])
def test_played_policy_remembers_until_its_episode_ends(outputs, name):
    steps = played(outputs, name)
    assert any(any(step["starts"]) for step in steps[1:])  # some episode ended while watching
    for step in steps:
        assert step["blank"] == step["starts"]


def test_go1s_student_is_exported_with_mjlabs_metadata(folder, outputs):
    (path,) = folder.glob(f"logs/rsl_rl/{GO1}/*_student/*_student.onnx")
    model = onnx.load(path)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert "base_lin_vel" not in metadata["observation_names"]
    assert "joint_pos" in metadata["observation_names"]
    assert {"h_in", "c_in"} <= {value.name for value in model.graph.input}
