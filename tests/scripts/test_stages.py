"""An experiment's stages: their commands, their inputs, and the settings they depend on."""

import shlex

import pytest

from rsl_tbptt.tools.commands.cli import command_parser
from scripts.pipeline import __main__ as pipeline
from scripts.pipeline.experiments import DEMO, Policy, load_experiment
from scripts.pipeline.stages import pipeline_stages, train_command

DEMO_MJLAB, DEMO_CAMERA = (DEMO.with_name(f"demo-{name}.yaml") for name in ("mjlab", "camera"))

ISAACLAB = load_experiment(DEMO).model_copy(update={"task": "Tbptt-Task", "num_envs": 5})
MJLAB = ISAACLAB.model_copy(update={"platform": "mjlab", "task": "Task"})
POLICY = Policy(title="", agent="Agent", iterations=7, seed=3)


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


def lay_out(experiment, device="cpu"):
    return {stage.name: stage for stage in pipeline_stages(experiment, device)}


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
