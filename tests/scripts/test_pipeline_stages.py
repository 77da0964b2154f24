"""A preset's stages: what each reads, and which settings it hangs on."""

import pytest

from rsl_tbptt.cli import command_parser
from scripts.pipeline import __main__ as pipeline
from scripts.pipeline.__main__ import main
from scripts.pipeline.conductor import unfinished
from scripts.pipeline.presets import DEMO, FINETUNE, load_preset
from scripts.pipeline.process import Finished
from scripts.pipeline.run_folder import RunFolder
from scripts.pipeline.stages import pipeline_stages

DEMO_MJLAB, DEMO_CAMERA = (DEMO.with_name(f"demo-{name}.yaml") for name in ("mjlab", "camera"))
PRESETS = (DEMO, DEMO_MJLAB, DEMO_CAMERA, FINETUNE)


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture
def preset():
    return load_preset(DEMO)


@pytest.fixture
def finetune():
    return load_preset(FINETUNE)


def stages(run, preset, device="cpu"):
    return {stage.name: stage for stage in pipeline_stages(run, preset, DEMO, device)}


def finish_all(run, preset):
    output = run.path / "output"
    output.touch()
    for stage in stages(run, preset).values():
        run.finish(stage, output, "", Finished(0, 1.0, 1.0))


def changed(preset, section, **changes):
    if section in preset.policies:
        policy = preset.policies[section].model_copy(update=changes)
        return preset.model_copy(update={"policies": preset.policies | {section: policy}})
    part = getattr(preset, section).model_copy(update=changes)
    return preset.model_copy(update={section: part})


def pending(run, preset):
    return unfinished(list(stages(run, preset).values()), run)


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_every_need_comes_before(run, file):
    preset, seen = load_preset(file), set()
    for stage in stages(run, preset).values():
        assert seen.issuperset(stage.needs)
        seen.add(stage.name)
    assert seen == {*preset.policies, *evaluations(preset), "video", "export", "report"}


def evaluations(preset):
    return {f"evaluate-{name}" for name in preset.evaluated}


def test_an_ablation_evaluates_its_policy_with_what_takes_something_away(run):
    preset = load_preset(DEMO_CAMERA)
    stage = stages(run, preset)["evaluate-blind"]
    assert stage.needs == ("student",)
    words = stage.command({"student": "s/model_1.pt"})
    plain = stages(run, preset)["evaluate-student"].command({"student": "s/model_1.pt"})
    assert {*words} - {*plain} == {
        "--output=evaluation/blind.json",
        "--overrides",
        "env.observations.camera.depth.scale=0.0",
    }


def test_a_policy_is_evaluated_on_the_task_that_it_was_trained_on(run):
    preset = load_preset(DEMO_CAMERA)
    changes = {"task_overrides": ["env.a=1", "env.b=2"], "overrides": ["env.c=3", "agent.d=4"]}
    student = preset.policies["student"].model_copy(update=changes)
    preset = preset.model_copy(update={"policies": preset.policies | {"student": student}})
    outputs = {"teacher": "t/model_1.pt", "student": "s/model_1.pt"}
    planned = stages(run, preset)
    assert planned["student"].command(outputs)[-4:] == [
        "env.a=1",
        "env.b=2",
        "env.c=3",
        "agent.d=4",
    ]
    args = command_parser("evaluate").parse_args(planned["evaluate-blind"].command(outputs)[1:])
    assert args.overrides == ["env.a=1", "env.b=2", "env.observations.camera.depth.scale=0.0"]
    assert args.seed == preset.evaluation.seed
    assert planned["video"].needs == ("teacher", "memoryless")
    shown = planned["video"].command(outputs | {"memoryless": "m/model_1.pt"})
    assert [word for word in shown if "checkpoint" in word] == [
        "--checkpoint=t/model_1.pt",
        "--checkpoint=m/model_1.pt",
    ]


def test_a_training_hangs_on_its_own_number_of_environments(run, preset):
    def settings(**changes):
        student = preset.policies["student"].model_copy(update=changes)
        changed = preset.model_copy(update={"policies": preset.policies | {"student": student}})
        return stages(run, changed)["student"].settings

    assert settings()["num_envs"] == preset.num_envs
    assert settings(num_envs=7)["num_envs"] == 7


def test_students_are_distilled_from_the_teachers_checkpoint(run, preset):
    for name in ("student", "memoryless"):
        command = stages(run, preset)[name].command({"teacher": "t/model_1.pt"})
        assert command[command.index("--checkpoint") + 1] == "t/model_1.pt"
        assert command[:2] == ["isaaclab", "train"]


def test_mjlabs_students_are_distilled_from_the_teachers_run(run):
    training = stages(run, load_preset(DEMO_MJLAB))
    for name in ("student", "memoryless"):
        command = training[name].command({"teacher": "logs/rsl_rl/e/1_teacher/model_1.pt"})
        assert command[:2] == ["train", f"Tbptt-Cartpole-Occluded-{name.title()}"]
        assert command[command.index("--agent.load-run") + 1] == "1_teacher"
        assert command[command.index("--agent.load-checkpoint") + 1] == "model_1.pt"


def test_ppo_goes_on_with_the_students_checkpoint_and_its_overrides(run, finetune):
    stage = stages(run, finetune)["finetuned"]
    assert stage.needs == ("student",)
    command = stage.command({"student": "s/model_1.pt"})
    assert command[command.index("--checkpoint") + 1] == "s/model_1.pt"
    assert command[command.index("--agent") + 1] == "rsl_rl_finetune_cfg_entry_point"
    assert command[-1] == "env.compute_final_obs=true"


def test_from_scratch_reads_nothing(run, finetune):
    stage = stages(run, finetune)["scratch"]
    assert stage.needs == ()
    assert "--checkpoint" not in stage.command({})


def test_exported_policy_is_the_presets_choice(run, finetune):
    stage = stages(run, finetune)["export"]
    assert stage.needs == ("finetuned",)
    assert "--checkpoint=f/model_1.pt" in stage.command({"finetuned": "f/model_1.pt"})


def test_the_video_shows_all_policies_in_their_order(run, finetune):
    outputs = {name: f"{name}.pt" for name in finetune.policies}
    command = stages(run, finetune)["video"].command(outputs)
    assert command[:2] == ["rsl-tbptt", "play"]
    shown = [word for word in command if word.startswith("--checkpoint")]
    assert shown == [f"--checkpoint={name}.pt" for name in finetune.policies]


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_all_policies_are_evaluated_alike(run, file):
    preset = load_preset(file)
    commands = [
        stages(run, preset)[f"evaluate-{name}"].command({name: f"{name}.pt"})
        for name in preset.policies
    ]
    rest = [
        # In mjlab the ids of a task differ by the agent; tests/tasks compares their environments.
        [word for word in command if not word.startswith(("--checkpoint", "--output", "--task"))]
        for command in commands
    ]
    assert all(words == rest[0] for words in rest)
    assert len({*map(tuple, commands)}) == len(preset.policies)


@pytest.mark.parametrize(
    ("file", "task"),
    [(DEMO, "Tbptt-Cartpole-Occluded"), (DEMO_MJLAB, "Tbptt-Cartpole-Occluded-Student")],
    ids=lambda value: getattr(value, "stem", ""),
)
def test_evaluation_opens_the_platforms_task(run, file, task):
    preset = load_preset(file)
    command = stages(run, preset)["evaluate-student"].command({"student": "s.pt"})
    assert f"--platform={preset.platform}" in command
    assert f"--task={task}" in command
    assert command[:2] == ["rsl-tbptt", "evaluate"]


def test_results_hang_on_the_platforms_versions(run):
    for file, package in ((DEMO, "isaaclab"), (DEMO_MJLAB, "mjlab")):
        for stage in stages(run, load_preset(file)).values():
            assert package in stage.settings["versions"]


def test_nothing_is_pending_when_all_is_finished(run, preset):
    finish_all(run, preset)
    assert pending(run, preset) == set()


POLICIES = ("teacher", "student", "memoryless")
EVALUATIONS = {f"evaluate-{name}" for name in POLICIES}


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        (
            "student",
            {"iterations": 1},
            {"student", "evaluate-student", "video", "export", "report"},
        ),
        ("memoryless", {"seed": 9}, {"memoryless", "evaluate-memoryless", "video", "report"}),
        (
            "memoryless",
            {"overrides": ["a=1"]},
            {"memoryless", "evaluate-memoryless", "video", "report"},
        ),
        ("memoryless", {"title": "MLP"}, {"report"}),
        ("evaluation", {"episodes": 5}, {*EVALUATIONS, "report"}),
        ("export", {"parity_steps": 5}, {"export", "report"}),
        ("export", {"policy": "memoryless"}, {"export", "report"}),
        ("teacher", {"iterations": 1}, {*POLICIES, *EVALUATIONS, "video", "export", "report"}),
        ("teacher", {"expected_seconds": 1.0}, set()),
    ],
)
def test_change_reaches_exactly_what_depends_on_it(run, preset, section, changes, expected):
    finish_all(run, preset)
    assert pending(run, changed(preset, section, **changes)) == expected


def test_other_start_runs_again(run, finetune):
    finish_all(run, finetune)
    expected = {"finetuned", "evaluate-finetuned", "video", "export", "report"}
    assert pending(run, changed(finetune, "finetuned", starts_from="teacher")) == expected


@pytest.mark.parametrize("change", [{"heading": "Other"}, {"summary": "Other."}, {"verdicts": []}])
def test_other_text_or_verdict_writes_the_report_again(run, preset, change):
    finish_all(run, preset)
    assert pending(run, preset.model_copy(update=change)) == {"report"}


def test_other_device_runs_again(run, preset):
    finish_all(run, preset)
    assert "teacher" in unfinished(list(stages(run, preset, "cuda:0").values()), run)


def test_unwritable_folder_ends_the_run_before_any_training(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "run")
    monkeypatch.setattr("sys.argv", ["scripts.pipeline", str(DEMO), "--output", folder])
    assert main() == 1
    captured = capsys.readouterr()
    assert "expected one that can be written" in captured.err
    assert "isaaclab train" not in captured.out


def test_missing_preset_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["scripts.pipeline", str(tmp_path / "absent.yaml")])
    assert main() == 1
    assert "absent.yaml cannot be read" in capsys.readouterr().err


def test_run_folder_is_named_after_the_preset(tmp_path, monkeypatch):
    folders = []

    def opened(folder):
        folders.append(folder.as_posix())
        raise ValueError("not today")

    monkeypatch.setattr(pipeline, "RunFolder", opened)
    monkeypatch.setattr("sys.argv", ["scripts.pipeline", str(FINETUNE)])
    assert main() == 1
    assert folders == ["runs/finetune"]
