"""An experiment's stages: their commands, their inputs, and the settings they depend on."""

import itertools
import os
import shlex
import time
from pathlib import Path

import pytest
import torch

from rsl_tbptt.tools.commands.cli import command_parser
from scripts.pipeline import __main__ as pipeline
from scripts.pipeline.experiments import DEMO, FINETUNE, REPOSITORY, Policy, load_experiment
from scripts.pipeline.run import run_stages
from scripts.pipeline.stages import pipeline_stages
from scripts.pipeline.sweep import load_sweep
from scripts.pipeline.training import train_command

DEMO_MJLAB, DEMO_CAMERA = (DEMO.with_name(f"demo-{name}.yaml") for name in ("mjlab", "camera"))

ISAACLAB = load_experiment(DEMO).model_copy(update={"task": "Tbptt-Task", "num_envs": 5})
MJLAB = ISAACLAB.model_copy(update={"platform": "mjlab", "task": "Task"})
POLICY = Policy(title="", agent="Agent", iterations=7, seed=3)
CHECKPOINT = "logs/rsl_rl/experiment/2026-01-01_00-00-00_teacher/model_6.pt"


def train(experiment, device="cpu", checkpoint=None, **changes):
    policy = POLICY.model_copy(update=changes)
    return train_command(experiment, policy, run_name="t", device=device, checkpoint=checkpoint)


def test_the_platforms_commands_without_checkpoint():
    assert shlex.join(train(ISAACLAB, device="cuda:0")) == (
        "isaaclab train --rl_library rsl_rl --task Tbptt-Task --agent Agent --num_envs 5"
        " --max_iterations 7 --seed 3 --run_name t physics=newton_mjwarp --device cuda:0"
        " agent.device=cuda:0"
    )
    assert shlex.join(train(MJLAB)) == (
        "train Task-Agent --env.scene.num-envs 5 --agent.max-iterations 7 --agent.seed 3"
        " --agent.run-name t --gpu-ids None"
    )
    assert train(MJLAB, device="cuda:1")[-2:] == ["--gpu-ids", "[1]"]


@pytest.mark.parametrize("experiment", [ISAACLAB, MJLAB], ids=["isaaclab", "mjlab"])
def test_a_checkpoint_goes_where_an_override_says_and_nowhere_else(experiment):
    overrides = ["a=1", "agent.teacher={checkpoint}"]
    line = train(experiment, checkpoint="a/model_1.pt", overrides=overrides, num_envs=9)
    assert line[-2:] == ["a=1", "agent.teacher=a/model_1.pt"]
    assert "model_1.pt" not in " ".join(line[:-1])
    assert [a for a, b in zip(line[1:], line, strict=False) if b.endswith("envs")] == ["9"]


def test_mjlab_resumes_a_checkpoint_by_run_and_file_and_takes_another_log_root_along():
    resume = "--agent.resume True --agent.load-run 2026-01-01_00-00-00_teacher"
    resume += " --agent.load-checkpoint model_6.pt"
    assert resume in shlex.join(train(MJLAB, checkpoint=CHECKPOINT))
    assert "--log-root" not in train(MJLAB, checkpoint=CHECKPOINT)
    words = train(MJLAB, checkpoint=f"/elsewhere/{CHECKPOINT}")
    assert words[words.index("--log-root") + 1] == "/elsewhere/logs/rsl_rl"
    assert resume in shlex.join(words)


def lay_out(experiment, device="cpu"):
    return {stage.name: stage for stage in pipeline_stages(experiment, device)}


def test_a_training_leaves_the_checkpoint_of_its_last_iteration(tmp_path):
    """The newest run with its name counts, not a run whose name only begins with it."""
    student = lay_out(load_experiment(DEMO))["student"]
    files = ("1_student/model_59.pt", "2_student/model_59.pt", "3_student/model_58.pt")
    body = "import pathlib, sys, time\nfor name in sys.argv[1:]:\n    path = pathlib.Path(name)\n"
    body += "    path.parent.mkdir(parents=True)\n    path.touch()\n    time.sleep(0.02)"
    names = [f"logs/rsl_rl/e/2026-01-01_00-00-0{file}" for file in (*files, "4_student_other/x")]
    names[-1] = names[-1].replace("/x", "/model_59.pt")
    object.__setattr__(student, "needs", ())
    object.__setattr__(student, "command", lambda _: ["python", "-c", body, *names])
    assert run_stages([student], tmp_path, "cpu")["student"].output == names[1]


def test_a_training_that_was_broken_off_goes_on_in_its_newest_log_folder(tmp_path):
    experiment = load_experiment(DEMO_MJLAB)
    rest_of = lay_out(experiment)["student"].rest
    assert rest_of is not None
    began_at = time.time()
    assert rest_of(tmp_path, began_at) is None
    runs = [tmp_path / f"logs/rsl_rl/e/2026-01-0{n}_00-00-00_student" for n in (1, 2)]
    runs.append(tmp_path / "logs/rsl_rl/e/2026-01-03_00-00-00_student_resumed")
    for run in runs:
        run.mkdir(parents=True)
        os.utime(run, (began_at + 1, began_at + 1))
    assert rest_of(tmp_path, began_at) is None  # no checkpoint yet
    for run in runs[1:]:
        torch.save({"iter": 7, "student_state_dict": {"a": torch.ones(1)}}, run / "model_7.pt")
        os.utime(run, (began_at + 1, began_at + 1))
    os.utime(runs[2], (began_at - 9, began_at - 9))  # of an earlier training
    rest = rest_of(tmp_path, began_at)
    assert rest is not None
    words = rest.command({"teacher": CHECKPOINT})
    named = dict(itertools.pairwise(words))
    assert words[:2] == ["train", "Tbptt-Cartpole-Occluded-Student"]
    assert named["--agent.run-name"] == "student_resumed"
    assert named["--agent.load-run"] == runs[1].name
    assert named["--agent.load-checkpoint"] == "model_7.pt"
    assert int(named["--agent.max-iterations"]) == experiment.policies["student"].iterations - 8
    assert (tmp_path / "logs/rsl_rl/e/2026-01-04_00-00-00_student_resumed/model_9.pt").match(
        rest.output
    )


def test_a_policy_that_was_trained_before_is_copied(tmp_path):
    experiment = load_sweep(REPOSITORY / "configs" / "go1_curves_cpu.yaml")[1]
    stages = {stage.name: stage for stage in pipeline_stages(experiment, "cpu")}
    teacher = run_stages([stages["teacher"]], tmp_path, "cpu")["teacher"].output
    assert Path(teacher).parts[:3] == ("logs", "rsl_rl", "tbptt_go1_flat")
    (tmp_path / "stages" / "teacher.json").unlink()
    assert run_stages([stages["teacher"]], tmp_path, "cpu")["teacher"].output == teacher
    words = stages["student"].command({"teacher": teacher})
    assert words[words.index("--agent.load-checkpoint") + 1] == Path(teacher).name
    assert (tmp_path / teacher).with_name("params").is_dir()


def changed(experiment, section, **changes):
    if section in experiment.policies:
        policy = experiment.policies[section].model_copy(update=changes)
        return experiment.model_copy(update={"policies": experiment.policies | {section: policy}})
    part = getattr(experiment, section).model_copy(update=changes)
    return experiment.model_copy(update={section: part})


def test_a_policy_is_evaluated_on_the_task_that_it_was_trained_on():
    settings = {"task_overrides": ["env.a=1", "env.b=2"], "overrides": ["env.c=3", "agent.d=4"]}
    experiment = changed(load_experiment(DEMO_CAMERA), "student", **settings)
    outputs = {name: f"{name}/model_1.pt" for name in experiment.policies}
    planned = lay_out(experiment)
    words = planned["student"].command(outputs)
    assert words[-4:] == ["env.a=1", "env.b=2", "env.c=3", "agent.d=4"]
    args = command_parser().parse_args(planned["evaluate-blind"].command(outputs)[1:])
    assert args.overrides == ["env.a=1", "env.b=2", "env.observations.camera.depth.scale=0.0"]
    assert args.seed == experiment.evaluation.seed
    assert planned["video"].needs == ("teacher", "memoryless")  # it shows one task


def test_the_memory_of_the_chosen_policy_is_measured_in_its_own_task():
    experiment = changed(load_experiment(DEMO), "student", task_overrides=["env.a=1"])
    stage = lay_out(experiment, "cuda:0")["memory"]
    words = stage.command({"student": "logs/2_student/model_59.pt"})
    args = command_parser().parse_args(words[1:])
    assert args.checkpoint == Path("logs/2_student/model_59.pt")
    assert (args.overrides, args.device) == (["env.a=1"], "cuda:0")
    assert stage.output == "stages/memory.log"  # the command prints its table


def test_the_chosen_policy_is_exported_and_all_are_in_the_video_in_their_order():
    experiment = load_experiment(FINETUNE)
    planned, outputs = lay_out(experiment), {name: f"{name}.pt" for name in experiment.policies}
    assert "--checkpoint=finetuned.pt" in planned["export"].command(outputs)
    command = planned["video"].command(outputs)
    assert command[:2] == ["rsl-tbptt", "play"]
    assert command[-4:] == [f"--checkpoint={name}.pt" for name in experiment.policies]


@pytest.mark.parametrize("file", [DEMO, DEMO_MJLAB], ids=lambda file: file.stem)
def test_all_policies_are_evaluated_alike_by_the_platforms_task(file):
    experiment = load_experiment(file)
    planned, outputs = lay_out(experiment), {name: f"{name}.pt" for name in experiment.policies}
    commands = {name: planned[f"evaluate-{name}"].command(outputs) for name in outputs}
    rest = [
        # In mjlab the ids of a task differ by the agent; tests/tasks compares their environments.
        [word for word in command if not word.startswith(("--checkpoint", "--output", "--task"))]
        for command in commands.values()
    ]
    assert all(words == rest[0] for words in rest)
    end = "-Student" if experiment.platform == "mjlab" else ""
    assert {f"--task={experiment.task}{end}", f"--platform={experiment.platform}"} <= {
        *commands["student"]
    }


POLICIES = ("teacher", "student", "memoryless")
EVALUATIONS = {f"evaluate-{name}" for name in POLICIES}
MEMORYLESS = {"memoryless", "evaluate-memoryless", "video"}
ALL = {*POLICIES, *EVALUATIONS, "memory", "video", "export"}


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ("student", {"num_envs": 7}, {"student", "evaluate-student", "memory", "video", "export"}),
        ("memoryless", {"overrides": ["a=1"]}, MEMORYLESS),
        ("memoryless", {"starts_from": "student"}, MEMORYLESS),
        ("memoryless", {"title": "MLP"}, set()),
        ("evaluation", {"episodes": 5}, EVALUATIONS),
        ("export", {"steps": 5}, {"export"}),
        ("export", {"policy": "memoryless"}, {"memory", "export"}),
        ("teacher", {"iterations": 1}, ALL),
        (None, {"device": "cuda:0"}, ALL),
    ],
)
def test_change_reaches_exactly_what_depends_on_it(section, changes, expected):
    """A stage runs again if its command changed, or one that it needs runs again."""
    demo, device = load_experiment(DEMO), changes.get("device", "cpu")
    outputs = {name: f"{name}.pt" for name in POLICIES}
    before, again = lay_out(demo), set()
    for stage in lay_out(changed(demo, section, **changes) if section else demo, device).values():
        if again & {*stage.needs} or stage.command(outputs) != before[stage.name].command(outputs):
            again.add(stage.name)
    assert before.keys() == ALL
    assert again == expected


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["scripts.pipeline", *map(str, arguments)])
    return pipeline.main()


def test_unwritable_folder_and_missing_file_end_the_run_before_any_training(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").write_text("")
    assert run_main(monkeypatch, DEMO, "--output", tmp_path / "file" / "run") == 1
    captured = capsys.readouterr()
    assert "expected a folder that can be written" in captured.err
    assert "isaaclab train" not in captured.out
    assert run_main(monkeypatch, tmp_path / "absent.yaml") == 1
    assert "absent.yaml cannot be read" in capsys.readouterr().err
