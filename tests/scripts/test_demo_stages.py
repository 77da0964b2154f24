"""The demo's stages: what each reads, and which settings it hangs on."""

import dataclasses

import pytest
from _conductor import unfinished
from _demo_stages import demo_stages
from _preset import DEFAULT_PRESET, POLICIES, load_preset
from _stages import RunFolder
from demo import main


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture
def preset():
    return load_preset(DEFAULT_PRESET)


def stages(run, preset, device="cpu"):
    return {stage.name: stage for stage in demo_stages(run, preset, DEFAULT_PRESET, device)}


def finish_all(run, preset):
    output = run.path / "output"
    output.touch()
    for stage in stages(run, preset).values():
        run.finish(stage, output, command="", seconds=1.0, peak_memory_gb=1.0)


def changed(preset, section, **changes):
    part = dataclasses.replace(getattr(preset, section), **changes)
    return dataclasses.replace(preset, **{section: part})


def test_every_need_comes_before(run, preset):
    seen = set()
    for stage in stages(run, preset).values():
        assert seen.issuperset(stage.needs)
        seen.add(stage.name)
    assert seen >= {*POLICIES, "export", "report"}


def test_students_are_distilled_from_the_teachers_checkpoint(run, preset):
    for name in ("student", "memoryless"):
        command = stages(run, preset)[name].command({"teacher": "t/model_1.pt"})
        assert command[command.index("--checkpoint") + 1] == "t/model_1.pt"
        assert command[:2] == ["isaaclab", "train"]


def test_all_policies_are_evaluated_alike(run, preset):
    commands = [
        stages(run, preset)[f"evaluate-{name}"].command({name: f"{name}.pt"}) for name in POLICIES
    ]
    rest = [
        [word for word in command if not word.startswith(("--checkpoint", "--output"))]
        for command in commands
    ]
    assert rest[0] == rest[1] == rest[2]


def test_nothing_is_pending_when_all_is_finished(run, preset):
    finish_all(run, preset)
    assert unfinished(list(stages(run, preset).values()), run) == set()


EVALUATIONS = {f"evaluate-{name}" for name in POLICIES}


@pytest.mark.parametrize(
    ("section", "changes", "pending"),
    [
        ("student", {"iterations": 1}, {"student", "evaluate-student", "export", "report"}),
        ("memoryless", {"seed": 9}, {"memoryless", "evaluate-memoryless", "report"}),
        ("evaluation", {"episodes": 5}, {*EVALUATIONS, "report"}),
        ("export", {"parity_steps": 5}, {"export", "report"}),
        ("teacher", {"iterations": 1}, {*POLICIES, *EVALUATIONS, "export", "report"}),
        ("teacher", {"expected_seconds": 1.0}, set()),
    ],
)
def test_change_reaches_exactly_what_depends_on_it(run, preset, section, changes, pending):
    finish_all(run, preset)
    names = unfinished(list(stages(run, changed(preset, section, **changes)).values()), run)
    assert names == pending


def test_other_device_runs_again(run, preset):
    finish_all(run, preset)
    assert "teacher" in unfinished(list(stages(run, preset, "cuda:0").values()), run)


def test_unwritable_folder_ends_the_demo_before_any_training(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("sys.argv", ["demo.py", "--output", str(tmp_path / "file" / "run")])
    assert main() == 1
    captured = capsys.readouterr()
    assert "expected one that can be written" in captured.err
    assert "isaaclab train" not in captured.out
