"""An experiment's stages: their commands, what each reads, and which settings it depends on."""

import os
import shlex

import pytest

from rsl_tbptt.tools.cli import command_parser
from scripts.pipeline import __main__ as pipeline
from scripts.pipeline.experiments import DEMO, FINETUNE, Policy, load_experiment
from scripts.pipeline.run import run_stages
from scripts.pipeline.stages import find_checkpoint, pipeline_stages, train_command

DEMO_MJLAB, DEMO_CAMERA = (DEMO.with_name(f"demo-{name}.yaml") for name in ("mjlab", "camera"))
FILES = (DEMO, DEMO_MJLAB, DEMO_CAMERA, FINETUNE)

ISAACLAB = load_experiment(DEMO).model_copy(update={"task": "Tbptt-Task", "num_envs": 5})
MJLAB = ISAACLAB.model_copy(update={"platform": "mjlab", "task": "Task"})
POLICY = Policy(title="", agent="an_entry_point", iterations=7, seed=3)
CHECKPOINT = "logs/rsl_rl/experiment/2026-01-01_00-00-00_teacher/model_6.pt"
RESUME = (
    "--agent.resume True --agent.load-run 2026-01-01_00-00-00_teacher --agent.load-checkpoint"
    " model_6.pt"
)


def isaaclab(policy=POLICY, device="cpu", checkpoint=None):
    return train_command(ISAACLAB, policy, run_name="t", device=device, checkpoint=checkpoint)


def mjlab(policy=POLICY, device="cpu", checkpoint=None):
    policy = policy.model_copy(update={"agent": "Student"})
    return train_command(MJLAB, policy, run_name="t", device=device, checkpoint=checkpoint)


def test_the_platforms_commands_without_checkpoint():
    assert shlex.join(isaaclab(device="cuda:0")) == (
        "isaaclab train --rl_library rsl_rl --task Tbptt-Task --agent an_entry_point --num_envs 5"
        " --max_iterations 7 --seed 3 --run_name t physics=newton_mjwarp --device cuda:0"
        " agent.device=cuda:0"
    )
    assert shlex.join(mjlab()) == (
        "train Task-Student --env.scene.num-envs 5 --agent.max-iterations 7 --agent.seed 3"
        " --agent.run-name t --gpu-ids None"
    )
    assert mjlab(device="cuda:1")[-2:] == ["--gpu-ids", "[1]"]


@pytest.mark.parametrize("command", [isaaclab, mjlab])
def test_what_a_policy_says_is_in_its_command(command):
    line = command(POLICY.model_copy(update={"num_envs": 9, "overrides": ["env.a=true", "b=1"]}))
    assert [a for a, b in zip(line[1:], line, strict=False) if b.endswith("envs")] == ["9"]
    assert line[-2:] == ["env.a=true", "b=1"]


@pytest.mark.parametrize("command", [isaaclab, mjlab])
def test_a_checkpoint_goes_where_an_override_says_and_nowhere_else(command):
    policy = POLICY.model_copy(update={"overrides": ["a=1", "agent.teacher={checkpoint}"]})
    line = command(policy, checkpoint="a/model_1.pt")
    assert line[-1] == "agent.teacher=a/model_1.pt"
    assert "model_1.pt" not in " ".join(line[:-1])


def test_mjlab_resumes_a_checkpoint_by_run_and_file_and_takes_another_log_root_along():
    assert RESUME in shlex.join(mjlab(checkpoint=CHECKPOINT))
    assert "--log-root" not in mjlab(checkpoint=CHECKPOINT)
    words = mjlab(checkpoint=f"/elsewhere/{CHECKPOINT}")
    assert words[words.index("--log-root") + 1] == "/elsewhere/logs/rsl_rl"
    assert RESUME in shlex.join(words)


def test_the_newest_checkpoint_of_a_training_that_reached_its_end_is_found(tmp_path):
    def checkpoint(timestamp, run_name, iteration, mtime):
        run = tmp_path / "logs/rsl_rl/e" / f"2026-01-01_00-00-0{timestamp}_{run_name}"
        path = run / f"model_{iteration}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (mtime, mtime))
        return path

    checkpoint("1", "student", 6, 100)
    newest = checkpoint("2", "student", 6, 200)
    checkpoint("3", "student", 5, 300)
    checkpoint("4", "student_other", 6, 400)
    assert find_checkpoint(tmp_path, "student", 6) == newest
    with pytest.raises(FileNotFoundError, match="did not reach its last iteration"):
        find_checkpoint(tmp_path, "student", 6, since=250)
    with pytest.raises(FileNotFoundError, match=r"model_9\.pt"):
        find_checkpoint(tmp_path, "student", 9)


@pytest.fixture
def stages(tmp_path):
    """Returns a function that lays out an experiment, or the one of a file."""

    def lay_out(experiment, device="cpu"):
        if not hasattr(experiment, "policies"):
            experiment = load_experiment(experiment)
        return {stage.name: stage for stage in pipeline_stages(experiment, tmp_path, device)}

    return lay_out


@pytest.fixture
def demo():
    return load_experiment(DEMO)


@pytest.fixture
def finetune():
    return load_experiment(FINETUNE)


def changed(experiment, section, **changes):
    if section in experiment.policies:
        policy = experiment.policies[section].model_copy(update=changes)
        return experiment.model_copy(update={"policies": experiment.policies | {section: policy}})
    part = getattr(experiment, section).model_copy(update=changes)
    return experiment.model_copy(update={section: part})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_need_comes_before(stages, file):
    experiment, seen = load_experiment(file), set()
    for stage in stages(experiment).values():
        assert seen.issuperset(stage.needs)
        seen.add(stage.name)
    evaluations = {f"evaluate-{name}" for name in experiment.evaluated}
    assert seen == {*experiment.policies, *evaluations, "video", "export"}


def test_a_policy_is_evaluated_on_the_task_that_it_was_trained_on(stages):
    settings = {"task_overrides": ["env.a=1", "env.b=2"], "overrides": ["env.c=3", "agent.d=4"]}
    experiment = changed(load_experiment(DEMO_CAMERA), "student", **settings)
    outputs = {name: f"{name}/model_1.pt" for name in experiment.policies}
    planned = stages(experiment)
    words = planned["student"].command(outputs)
    assert words[-4:] == ["env.a=1", "env.b=2", "env.c=3", "agent.d=4"]
    args = command_parser("evaluate").parse_args(planned["evaluate-blind"].command(outputs)[1:])
    assert args.overrides == ["env.a=1", "env.b=2", "env.observations.camera.depth.scale=0.0"]
    assert args.seed == experiment.evaluation.seed
    assert planned["video"].needs == ("teacher", "memoryless")  # it shows one task


def test_the_chosen_policy_is_exported_and_all_are_in_the_video_in_their_order(stages, finetune):
    planned, outputs = stages(finetune), {name: f"{name}.pt" for name in finetune.policies}
    assert planned["export"].needs == ("finetuned",)
    assert "--checkpoint=finetuned.pt" in planned["export"].command(outputs)
    command = planned["video"].command(outputs)
    assert command[:2] == ["rsl-tbptt", "play"]
    checkpoints = [word for word in command if word.startswith("--checkpoint")]
    assert checkpoints == [f"--checkpoint={name}.pt" for name in finetune.policies]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_all_policies_are_evaluated_alike_by_the_platforms_task(stages, file):
    experiment, planned = load_experiment(file), stages(file)
    commands = {
        name: planned[f"evaluate-{name}"].command({name: f"{name}.pt"})
        for name in experiment.policies
    }
    rest = [
        # In mjlab the ids of a task differ by the agent; tests/tasks compares their environments.
        [word for word in command if not word.startswith(("--checkpoint", "--output", "--task"))]
        for command in commands.values()
    ]
    assert all(words == rest[0] for words in rest)
    assert len({*map(tuple, commands.values())}) == len(experiment.policies)
    end = "-Student" if experiment.platform == "mjlab" else ""
    assert {f"--task={experiment.task}{end}", f"--platform={experiment.platform}"} <= {
        *commands["student"]
    }


POLICIES = ("teacher", "student", "memoryless")
EVALUATIONS = {f"evaluate-{name}" for name in POLICIES}
STUDENTS = {"student", "evaluate-student", "video", "export"}


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ("student", {"iterations": 1}, STUDENTS),
        ("student", {"num_envs": 7}, STUDENTS),
        ("memoryless", {"seed": 9}, {"memoryless", "evaluate-memoryless", "video"}),
        ("memoryless", {"overrides": ["a=1"]}, {"memoryless", "evaluate-memoryless", "video"}),
        ("memoryless", {"starts_from": "student"}, {"memoryless", "evaluate-memoryless", "video"}),
        ("memoryless", {"title": "MLP"}, set()),
        ("evaluation", {"episodes": 5}, EVALUATIONS),
        ("export", {"parity_steps": 5}, {"export"}),
        ("export", {"policy": "memoryless"}, {"export"}),
        ("teacher", {"iterations": 1}, {*POLICIES, *EVALUATIONS, "video", "export"}),
        (None, {"heading": "Other", "summary": "Other.", "acceptance": []}, set()),
        (None, {"device": "cuda:0"}, {*POLICIES, *EVALUATIONS, "video", "export"}),
    ],
)
def test_change_reaches_exactly_what_depends_on_it(
    stages, demo, tmp_path, capsys, section, changes, expected
):
    """With commands that do nothing, and one result for all."""

    def ran(experiment, device="cpu"):
        planned = stages(experiment, device).values()
        for stage in planned:
            command = stage.command
            object.__setattr__(stage, "command", lambda o, c=command: ["python", "-c", "", *c(o)])
            log = tmp_path / "stages" / f"{stage.name}.log"
            object.__setattr__(stage, "output", lambda _, log=log: log)
        run_stages([*planned], tmp_path, "cpu")
        lines = capsys.readouterr().out.splitlines()
        return {line.split()[1] for line in lines if line.startswith("[") and "  done" in line}

    assert ran(demo) == {*POLICIES, *EVALUATIONS, "video", "export"}
    device = changes.pop("device", "cpu")
    other = changed(demo, section, **changes) if section else demo.model_copy(update=changes)
    assert ran(other, device) == expected


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["scripts.pipeline", *map(str, arguments)])
    return pipeline.main()


def test_unwritable_folder_and_missing_file_end_the_run_before_any_training(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").write_text("")
    assert run_main(monkeypatch, DEMO, "--output", tmp_path / "file" / "run") == 1
    captured = capsys.readouterr()
    assert "expected one that can be written" in captured.err
    assert "isaaclab train" not in captured.out
    assert run_main(monkeypatch, tmp_path / "absent.yaml") == 1
    assert "absent.yaml cannot be read" in capsys.readouterr().err
