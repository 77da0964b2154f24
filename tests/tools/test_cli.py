"""The command rsl-tbptt: its help, its errors in one line, and rsl_rl alone from end to end."""

import errno
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.helpers import make_distillation
from support.trained import as_a_runner_builds_it

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.installation import install
from rsl_tbptt.tools.commands import doctor
from rsl_tbptt.tools.commands.cli import command_parser, main
from rsl_tbptt.tools.commands.commands import COMMANDS
from rsl_tbptt.tools.platforms import PLATFORMS

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")
ONE_SCREEN = 36


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_one_screen(capsys, name):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: rsl-tbptt {name}")
    assert 5 < len(shown.splitlines()) <= ONE_SCREEN
    texts = shown.split("options:")[1]
    assert texts.count("default:") <= texts.count("\n  -")


def test_help_names_every_command_and_nothing_slow_is_loaded():
    names = ", ".join(f"rsl_tbptt.tools.platforms.{name}" for name in PLATFORMS)
    code = f"import sys, {names}; from rsl_tbptt.tools.commands.cli import main\n"
    code += "try: main(['--help'])\nfinally: print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"^    ([a-z]+) ", shown, re.MULTILINE) == [*COMMANDS]
    names = "doctor latest evaluate compare memory export verify web"
    assert [*COMMANDS] == names.split()
    slow = {"torch", "numpy", "onnx", "rsl_rl", "warp", "mujoco", "mjlab", "isaaclab"}
    assert slow.isdisjoint(shown.splitlines()[-1].split())


MAKER = """
import torch
from tensordict import TensorDict


class Env:
    num_actions, device, max_episode_length, step_dt = 1, "cpu", 3, 0.5

    def __init__(self, num_envs, width=5):
        self.num_envs, self.width = num_envs, width
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)

    def get_observations(self):
        return TensorDict({"policy": torch.randn(self.num_envs, self.width)}, [self.num_envs])

    def step(self, actions):
        self.episode_length_buf += 1
        dones = self.episode_length_buf == 3
        self.episode_length_buf[dones] = 0
        return self.get_observations(), actions[:, 0], dones.long(), {}


def make(num_envs, seed, device, width=5, **entries):
    env = Env(num_envs, width)
    vars(env).update(entries)
    return env


def wide(*arguments):
    return make(*arguments, width=7)


def timeless(*arguments):
    return make(*arguments, step_dt=0)


def nothing(*arguments):
    pass


def renamed(num_envs, *arguments):
    obs = TensorDict({"other": torch.zeros(num_envs, 5)}, [num_envs])
    return make(num_envs, *arguments, get_observations=lambda: obs)


def endless(num_envs, *arguments):
    env = make(num_envs, *arguments)
    env.max_episode_length = torch.tensor([1, 2])  # a limit each, which nothing enforces
    step = env.step
    env.step = lambda actions: (*step(actions)[:2], torch.zeros(num_envs), {})
    return env


def broken(num_envs, *arguments):
    env, reward = make(num_envs, *arguments), torch.zeros(num_envs)
    reward[2] = torch.nan
    env.step = lambda actions: (env.get_observations(), reward, torch.zeros(num_envs), {})
    return env
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a checkpoint that rsl_rl alone left, and a user's environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for name in [name for name in sys.modules if name == "my_envs"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "my_envs.py").write_text(MAKER)
    algorithm = as_a_runner_builds_it(make_distillation(TbpttDistillation, 4, 2, gradient_length=2))
    torch.save({**algorithm.save(), "iter": 0}, "model_0.pt")
    (tmp_path / "no_run").mkdir()
    torch.save({"optimizer_state_dict": {}}, "no_policy.pt")
    saved = {**algorithm.save(), "iter": 0}
    torch.save({"actor_state_dict": [1]}, "no_tensors.pt")
    own = saved["rsl_tbptt"]
    torch.save(saved | {"rsl_tbptt": own | {"robot": {"step_dt": 0}}}, "no_time.pt")
    group = {"policy": {"shape": [5], "dtype": "load"}}
    models = {"student": own["models"]["student"] | {"groups": group}}
    torch.save(saved | {"rsl_tbptt": own | {"models": models}}, "no_dtype.pt")
    torch.jit.script(torch.nn.Linear(1, 1)).save("exported.pt")
    (tmp_path / "needs_more.py").write_text("import module_of_somebody\n")
    torch.save({"actor_state_dict": {}}, "empty_policy.pt")
    torch.save({"actor_state_dict": {"net.weight": torch.zeros(2, 2)}}, "other_model.pt")
    (tmp_path / "damaged.pt").write_bytes((tmp_path / "model_0.pt").read_bytes()[:500])
    (tmp_path / "list.yaml").write_text("[actor]")
    (tmp_path / "told.yaml").write_text(
        "obs_groups: {actor: [policy]}\nactor: {class_name: MLPModel}"
    )
    return tmp_path


def test_an_exported_policy_is_evaluated_as_its_checkpoint(folder, capsys):
    words = ["--env", "my_envs:make", "--episodes", "4", "--output"]
    trained = ["evaluate", "--checkpoint", "model_0.pt", *words, "trained.json"]
    assert main(["export", "--checkpoint", "latest", "--env", "my_envs:make"]) == 0
    printed, bundle = capsys.readouterr().out, folder / "exported" / "model_0"
    assert "one robot of my_envs:make" in printed
    assert "onnx: largest difference of an action" in printed
    assert printed.splitlines()[-1].startswith("wrote ")
    assert main(["verify", str(bundle)]) == 0
    assert main(["evaluate", "--policy", str(bundle), *words, "exported.json"]) == 0
    assert main(trained) == 0
    results = [
        json.loads((folder / f"{name}.json").read_text()) for name in ("exported", "trained")
    ]
    assert results[0]["returns"] == pytest.approx(results[1]["returns"], abs=1e-5)
    assert [result["form"] for result in results] == ["onnx", "checkpoint"]
    shutil.copytree(bundle, folder / "elsewhere")
    assert main(["evaluate", "--policy", "elsewhere", *words, "alone.json"]) == 0
    alone = json.loads((folder / "alone.json").read_text())
    assert alone == results[0]
    assert main(["evaluate", "--policy", "elsewhere"]) == 1
    assert "name the checkpoint with --checkpoint" in capsys.readouterr().err


def evaluate(*arguments):
    return main(["evaluate", "--checkpoint", "model_0.pt", "--episodes", "4", *arguments])


def test_a_checkpoint_of_rsl_rl_alone_is_evaluated_in_the_users_environment(folder, capsys):
    results = []
    for seed, file in (("5", "evaluation.json"), ("5", "evaluation-2.json"), ("6", "e/6.json")):
        named = ["--output", file] if seed == "6" else []
        assert evaluate("--env", "my_envs:make", "--seed", seed, *named) == 0
        results.append(json.loads((folder / file).read_text()))
        shown = capsys.readouterr().out
        assert "95 % confidence" in shown
        assert shown.endswith(f"wrote {file}\n")
    assert results[0] == results[1]
    assert results[0]["returns"] != results[2]["returns"]
    assert results[0]["lengths"] == [3, 3, 3, 3]
    assert (results[0]["task"], results[0]["step_seconds"]) == ("my_envs:make", 0.5)


def test_episodes_that_nothing_ends_count_as_they_stand_after_a_limit_that_is_named(folder):
    with pytest.warns(UserWarning, match=r"4 of 4 episodes had not ended after 3 steps"):
        assert evaluate("--env", "my_envs:endless", "--output", "e.json") == 0
    result = json.loads((folder / "e.json").read_text())
    assert (result["lengths"], result["unfinished"], result["max_steps"]) == ([3] * 4, 4, 3)
    with pytest.warns(UserWarning, match="after 5 steps"):
        assert evaluate("--env", "my_envs:endless", "--max-steps", "5", "--output", "e.json") == 0


MODEL = "--checkpoint model_0.pt"
WRONG = {
    "export --checkpoint no.pt": "'no.pt' does not exist",
    "export --checkpoint damaged.pt": "cannot be read, it is damaged",
    "export --checkpoint exported.pt": "it is an exported policy: name the model_",
    "export --checkpoint no_tensors.pt": "holds no tensors by name as actor_state_dict",
    "export --checkpoint no_time.pt": "step_dt is 0 in no_time.pt, expected seconds above 0",
    "export --checkpoint no_dtype.pt": "'load' in no_dtype.pt, expected one such as 'float32'",
    "export --checkpoint no_policy.pt": "expected one of",
    "export --checkpoint no_run": "holds no valid checkpoint",
    f"export {MODEL} --agent no.yaml": "'no.yaml' cannot be read",
    f"export {MODEL} --agent list.yaml": "'list.yaml' holds ['actor'], expected a mapping",
    "export --checkpoint other_model.pt": "as --agent FILE",
    "export --checkpoint empty_policy.pt": "expected one of",
    "export --checkpoint other_model.pt --agent told.yaml": "does not record the shapes",
    f"export {MODEL} --env my_envs:nothing": "draw the trajectory with --drawn",
    f"export {MODEL} --steps 1": "steps is 1",
    "memory model_0.pt --env my_envs:make --steps -1": "steps is -1, expected at least 40",
    "memory model_0.pt --env my_envs:make --num-envs 0": "num_envs is 0, expected at least 8",
    f"export {MODEL} --tolerance -1": "not within -1.0e+00",
    f"evaluate {MODEL}": "--env module:function",
    f"evaluate {MODEL} --episodes 1": "episodes is 1",
    f"evaluate {MODEL} --max-steps 0": "max_steps is 0",
    f"evaluate {MODEL} --env my_envs:make --task T": "expected one of both",
    f"evaluate {MODEL} --env my_envs:renamed": "expected ['policy'] among them",
    f"evaluate {MODEL} --env my_envs:wide": "{'policy': [7]}, expected {'policy': [5]}",
    f"evaluate {MODEL} --env my_envs:make --overrides a=1": "overrides is ['a=1'], expected none",
    f"evaluate {MODEL} --env my_envs": "--env is 'my_envs', expected module:function",
    f"evaluate {MODEL} --env my_envs:torch": "<module 'torch' from",
    f"evaluate {MODEL} --env my_envs:Env": "too many positional arguments",
    f"evaluate {MODEL} --env my_envs:nothing": "returns None, expected a VecEnv of rsl_rl",
    # The output is refused before anything is simulated.
    f"evaluate {MODEL} --env my_envs:broken --output model_0.pt/e.json": "The output is",
    f"evaluate {MODEL} --env my_envs:broken": "The return of environment 2 is nan after 1 steps,",
    f"evaluate {MODEL} --env my_envs:timeless": "is 0, expected seconds above 0",
    f"evaluate {MODEL} --env needs_more:make": "The module module_of_somebody is missing",
    f"evaluate {MODEL} --env my_envs:make --device cuda:99": "--device is cuda:99",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items(), ids=WRONG.keys())
def test_what_is_wrong_is_said_in_one_line_and_leaves_no_file(folder, capsys, line, message):
    words = line.split()
    assert main(words) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith(f"rsl-tbptt {words[0]}: ")
    assert error.count("\n") == 1
    assert not (folder / "evaluation.json").exists()


def test_a_full_disk_names_the_file_and_the_evaluation_is_printed(folder, monkeypatch, capsys):
    def full(self, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert evaluate("--env", "my_envs:make") == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["lengths"] == [3, 3, 3, 3]
    assert shown.err.count("\n") == 1
    assert f"No space left on device: '{folder / 'evaluation.json'}'" in shown.err


@pytest.mark.parametrize("command", ["evaluate --env my_envs:make", "export"])
def test_what_another_program_wrote_is_not_replaced(folder, command, capsys):
    save = folder / "project" / "README.md"
    save.parent.mkdir()
    save.write_text("mine")
    output = str(save.parent if command == "export" else save)
    words = [*command.split(), "--checkpoint", "model_0.pt", "--output", output]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert f"The output is {output}, which this command has not written" in shown.err
    assert save.read_text() == "mine"


def test_a_bundle_of_another_policy_is_not_evaluated_under_a_checkpoints_name(folder, capsys):
    other = as_a_runner_builds_it(make_distillation(TbpttDistillation, 4, 2, gradient_length=2))
    list(other.student.parameters())[-1].data += 0.1
    (folder / "other").mkdir()
    torch.save({**other.save(), "iter": 0}, "other/model_0.pt")
    assert main(["export", "--checkpoint", "other/model_0.pt"]) == 0
    words = ["--env", "my_envs:make", "--policy", "other/exported/model_0"]
    assert evaluate(*words) == 1
    assert "is not the checkpoint's, expected its export" in capsys.readouterr().err
    assert not (folder / "evaluation.json").exists()


@pytest.mark.parametrize(
    "words",
    [[], ["fly"], ["export"], ["export", "--checkpoint", "m.pt", "--fast"], ["evaluate", "--env"]],
)
def test_wrong_arguments_end_with_usage(capsys, words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage: rsl-tbptt" in capsys.readouterr().err


def test_a_missing_package_names_the_extra(folder, monkeypatch, capsys):
    find = doctor.importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name == "scipy" else find(name)
    )
    monkeypatch.setitem(sys.modules, "mjlab", None)
    monkeypatch.setitem(sys.modules, "mjlab.tasks", None)
    assert evaluate("--platform", "mjlab", "--task", "T") == 1
    assert f"The module scipy is missing: {install('tools')}" in capsys.readouterr().err
    monkeypatch.setattr(doctor.importlib.util, "find_spec", find)
    assert evaluate("--platform", "mjlab", "--task", "T") == 1
    assert f"The module mjlab is missing: {install('mjlab')}" in capsys.readouterr().err


def test_the_commands_of_the_pages_are_known(request):
    root = request.config.rootpath
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    lines = re.findall(r"(?<=rsl-tbptt )[a-z]+(?: --[^`#\n]*)?", text)
    assert {line.split()[0] for line in lines} <= {*COMMANDS}
    parsed = [line.split() for line in lines if "--" in line]
    assert len(parsed) >= 5
    for words in parsed:
        args, unknown = command_parser().parse_known_args(words)
        assert args.command == words[0]
        assert not unknown


def test_doctor_names_every_fault(folder, monkeypatch, capsys):
    versions = {"python": "3.11.0", "torch": None, "isaaclab": "3.0.0", "mjlab": None}
    monkeypatch.setattr(
        doctor, "versions", lambda further=(): dict.fromkeys(further, "1") | versions
    )
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    assert main(["doctor", "--device", "cuda:99"]) == 1
    wrong = [
        line.split("WRONG")[0].strip()
        for line in capsys.readouterr().out.splitlines()
        if "  WRONG  " in line
    ]
    assert wrong == ["packages", "Isaac Lab", "EnvPool", "device"]
