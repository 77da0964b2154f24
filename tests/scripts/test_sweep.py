"""Sweeps: their values replace the experiment's; wrong ones are refused."""

import shlex

import pytest
import yaml

from scripts.pipeline.experiments import FINETUNE, REPOSITORY
from scripts.pipeline.stages import policy_stages
from scripts.pipeline.sweep import Task, load_sweep, one_seed_each, one_task_each, sweep_stages

CURVES = REPOSITORY / "configs" / "learning_curves.yaml"


def write_sweep(tmp_path, **changes):
    values = yaml.safe_load(CURVES.read_text()) | {"experiment": str(FINETUNE)} | changes
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


def test_a_sweeps_values_replace_the_experiments(tmp_path):
    policies = {
        "teacher": {},
        "student": {"iterations": 7},
        "other": {"like": "finetuned", "overrides": ["a=1"]},
        "same": {"like": "finetuned"},
        "guided": {"like": "scratch", "starts_from": "teacher"},
    }
    loaded = load_sweep(write_sweep(tmp_path, policies=policies))[1].policies
    assert [*loaded] == [*policies]
    assert [loaded[name].iterations for name in ("teacher", "student")] == [80, 7]
    assert loaded["other"].overrides == ["a=1"]
    assert loaded["same"].overrides == ["env.compute_final_obs=true"]
    assert [loaded[name].starts_from for name in ("other", "guided")] == ["student", "teacher"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": {"studnet": {}}}, "policies: studnet is like 'studnet', expected one of"),
        (
            {"policies": {"teacher": {}, "a": {"like": "scratch", "starts_from": "student"}}},
            r"a is like 'scratch'.*one before it: \['teacher'\]",
        ),
        ({"evaluate_after": {"nobody": [1]}}, "evaluate_after: nobody is .*'teacher': 80"),
        ({"evaluate_after": {"teacher": [1, 81]}}, "evaluate_after: teacher is .*'teacher': 80"),
    ],
)
def test_wrong_sweep_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_sweep(write_sweep(tmp_path, **changes))


def test_every_policy_has_every_seed_and_extra_evaluations(tmp_path):
    file = write_sweep(tmp_path, seeds=[3, 4], evaluate_after={"scratch": [1, 20]})
    stages = {stage.name: stage for stage in sweep_stages(*load_sweep(file), "cpu")}
    policies = ("teacher", "student", "finetuned", "scratch")
    names = [f"{policy}-{seed}" for seed in (3, 4) for policy in policies]
    early = [f"scratch-{seed}-after-{i}" for seed in (3, 4) for i in (1, 20)]
    in_turn = [stage for name in names for stage in (name, f"evaluate-{name}")]
    assert list(stages) == [*in_turn, *(f"evaluate-{name}" for name in early)]
    starts = {"student-4": ("teacher-4",), "finetuned-3": ("student-3",), "scratch-3": ()}
    assert {name: stages[name].needs for name in starts} == starts
    command = stages["finetuned-4"].command({"student-4": "s/model_1.pt"})
    for option, value in (("checkpoint", "s/model_1.pt"), ("seed", "4"), ("run_name", None)):
        assert command[command.index(f"--{option}") + 1] == (value or "finetuned-4")
    late = stages["evaluate-scratch-4-after-20"]
    assert late.needs == ("scratch-4",)
    words = late.command({"scratch-4": "logs/x/model_149.pt"})
    assert "--checkpoint=logs/x/model_19.pt" in words
    assert "--output=evaluation/scratch-4-after-20.json" in words


def test_each_task_has_its_settings_and_its_factor_of_iterations():
    sweep, experiment = load_sweep(REPOSITORY / "configs" / "go1_hidden.yaml")
    tasks = {"short": Task(task="A"), "long": Task(task="B", times=3, overrides=["env.b=1"])}
    short, long = one_task_each(sweep.model_copy(update={"tasks": tasks}), experiment).values()
    assert (short.task, long.task) == ("A", "B")
    before, after = (one.policies["history5"] for one in (short, long))
    assert (before.task_overrides, after.task_overrides) == (
        ["env.history=5"],
        ["env.history=5", "env.b=1"],
    )
    assert after.iterations == 3 * before.iterations
    command = shlex.join(stage_of(long, "history5-1").command({"teacher-1": "t/model_1.pt"}))
    assert "envpool B memoryless" in command
    assert "env.history=5 env.b=1" in command
    evaluation = stage_of(long, "evaluate-history5-1").command({"history5-1": "s/model_1.pt"})
    assert evaluation[evaluation.index("--overrides") + 1 :] == after.task_overrides


def stage_of(experiment, name):
    repeated = one_seed_each(experiment, [1])
    return next(stage for stage in policy_stages(repeated, "cpu") if stage.name == name)
