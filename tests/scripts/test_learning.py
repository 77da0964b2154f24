"""The comparison over seeds, on curves worked by hand."""

import re

import pytest
import yaml

from rsl_tbptt.files import write_json
from scripts.pipeline import curves
from scripts.pipeline.learning import Learning, compare, format_markdown, read_learnings
from scripts.pipeline.learning_figure import band, save_learning
from scripts.pipeline.presets import FINETUNE, REPOSITORY, load_preset
from scripts.pipeline.run_folder import Marker
from scripts.pipeline.study import Study

STUDY = Study(preset="", seeds=[1, 2], iterations={}, min_share_of_teacher=0.95, max_step_ratio=2.0)


def learning(policy, seed=1, curve=None, evaluated_return=10.0, **changes):
    steps = {"num_steps": 1000, "num_earlier_steps": 0} | changes
    curve = {500: 1.0, 1000: 10.0} if curve is None else curve
    return Learning(
        policy=policy, seed=seed, curve=curve, evaluated_return=evaluated_return, **steps
    )


TEACHER = learning("teacher", curve={250: 9.6, 500: 10.4, 1000: 10.0})


def compared(*learnings):
    return compare([TEACHER, *learnings], "teacher", STUDY)[1:]


def test_goal_is_a_share_of_the_teachers_last_return():
    (row,) = compared(learning("scratch", curve={400: 9.4, 500: 9.5, 600: 9.0, 800: 9.9}))
    assert row.steps_to_goal == 500
    assert row.of_steps_to_goal == 2.0  # the teacher first had 9.5 after 250 steps
    assert row.of_total_steps == 0.5


def test_steps_as_a_student_count():
    (row,) = compared(learning("finetuned", num_earlier_steps=700))
    assert row.steps_to_goal == 1700
    assert row.of_total_steps == 1.7


def test_goal_that_is_never_reached_has_no_ratio():
    (row,) = compared(learning("scratch", curve={1000: 9.4}))
    assert (row.steps_to_goal, row.of_steps_to_goal, row.of_total_steps) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"evaluated_return": 9.5}, True),
        ({"evaluated_return": 9.4}, False),
        ({"num_steps": 2000}, True),
        ({"num_steps": 2001}, False),
        ({"num_steps": 1000, "num_earlier_steps": 1000}, True),
        ({"num_steps": 1000, "num_earlier_steps": 1001}, False),
    ],
)
def test_verdict_needs_the_return_within_the_steps(changes, passed):
    (row,) = compared(learning("finetuned", **changes))
    assert row.passed is passed


def test_each_seed_is_held_against_its_own_teacher():
    other = learning("teacher", seed=2, curve={1000: 20.0}, evaluated_return=20.0)
    rows = compared(learning("scratch"), other, learning("scratch", seed=2))
    assert [row.share for row in rows] == [1.0, 1.0, 0.5]
    assert [row.passed for row in rows] == [True, True, False]


def test_share_of_a_return_that_is_not_positive_is_not_given():
    rows = compare([learning("teacher", evaluated_return=-1.0)], "teacher", STUDY)
    assert rows[0].share is None
    assert not rows[0].passed


def test_table_has_a_row_per_policy_and_seed_sorted_by_policy():
    learnings = [
        TEACHER,
        learning("scratch", curve={1000: 1.0}, evaluated_return=2.0),
        learning("teacher", seed=2),
        learning("scratch", seed=2, num_earlier_steps=1000),
    ]
    table = format_markdown(compare(learnings, "teacher", STUDY), "teacher", STUDY)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| ")
    ]
    assert rows[1:] == [
        ["teacher", "1", "10.000", "100.0%", "1,000", "0", "250", "1.00", "0.25", "yes"],
        ["teacher", "2", "10.000", "100.0%", "1,000", "0", "1,000", "1.00", "1.00", "yes"],
        ["scratch", "1", "2.000", "20.0%", "1,000", "0", "never", "n/a", "n/a", "no"],
        ["scratch", "2", "10.000", "100.0%", "1,000", "1,000", "2,000", "2.00", "2.00", "yes"],
    ]
    assert len({len(row) for row in rows}) == 1
    assert "- scratch: 1 of 2 seeds within" in table
    assert "- teacher" not in table
    assert "first reached, not kept" in table


def test_band_covers_the_steps_that_all_seeds_have():
    curves = [{10: 1.0, 20: 2.0, 30: 3.0}, {20: 4.0, 30: 3.0}, {20: 6.0, 30: 0.0, 40: 1.0}]
    assert band(curves) == ([20, 30], [4.0, 2.0], [2.0, 0.0], [6.0, 3.0])


def test_figure_names_all_policies_and_stays_small(tmp_path):
    curve = {8192 * i: 8.0 - 7.0 / i for i in range(1, 151)}
    learnings = [
        learning(policy, seed, curve=curve, num_earlier_steps=980_000 * (policy == "finetuned"))
        for seed in (1, 2)
        for policy in ("teacher", "student", "finetuned", "scratch")
    ]
    path = tmp_path / "figures" / "learning.svg"
    save_learning(learnings, "teacher", STUDY, path)
    text = path.read_text()
    for expected in (
        ">teacher<",
        ">student<",
        ">scratch<",
        ">finetuned, after 0.98 million as a student<",
    ):
        assert expected in text
    assert ">95% of the teacher<" in text
    assert len(text) < 150_000


@pytest.fixture
def preset():
    return load_preset(FINETUNE)


@pytest.fixture
def markers(tmp_path, preset):
    """Leave what the stages of seed 7 leave: 2 logged iterations of 10 steps."""
    from torch.utils.tensorboard import SummaryWriter

    markers = {}
    for place, name in enumerate(preset.policies):
        log = tmp_path / "logs" / name
        with SummaryWriter(log_dir=str(log)) as writer:
            for iteration in range(2):
                writer.add_scalar("Train/mean_reward", place + iteration, iteration)
        (log / "params").mkdir()
        (log / "params" / "agent.yaml").write_text(yaml.safe_dump({"num_steps_per_env": 10}))
        (log / "model_1.pt").touch()
        write_json(tmp_path / "evaluation" / f"{name}-7.json", {"mean_return": 5.0 + place})
        markers[f"{name}-7"] = Marker(
            fingerprint="",
            output=f"logs/{name}/model_1.pt",
            command="",
            seconds=1.0,
            peak_memory_gb=1.0,
            finished_at=1.0,
        )
    return markers


def test_stages_are_read(tmp_path, preset, markers):
    learnings = {one.policy: one for one in read_learnings(tmp_path, preset, [7], markers)}
    per_iteration = preset.num_envs * 10
    assert learnings["student"].curve == {per_iteration: 1.0, 2 * per_iteration: 2.0}
    assert learnings["teacher"].num_steps == per_iteration * preset.policies["teacher"].iterations
    earlier = {name: one.num_earlier_steps for name, one in learnings.items()}
    students = per_iteration * preset.policies["student"].iterations
    assert earlier == {"teacher": 0, "student": 0, "finetuned": students, "scratch": 0}
    assert [one.evaluated_return for one in learnings.values()] == [5.0, 6.0, 7.0, 8.0]


def test_study_ends_with_table_and_figure(tmp_path, markers, monkeypatch, capsys):
    stages = []

    class FinishedBefore:
        def __init__(self, run, device):
            pass

        def run_all(self, planned):
            stages.extend(stage.name for stage in planned)
            return markers

    monkeypatch.setattr(curves, "Conductor", FinishedBefore)
    study = yaml.safe_load((REPOSITORY / "configs" / "curves.yaml").read_text())
    study |= {"preset": str(FINETUNE), "seeds": [7]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    figure = tmp_path / "curves.svg"
    arguments = [str(tmp_path / "study.yaml"), "--output", str(tmp_path), "--figure", str(figure)]
    monkeypatch.setattr("sys.argv", ["curves.py", *arguments])
    assert curves.main() == 0
    table = (tmp_path / "table.md").read_text()
    assert "| scratch | 7 | 8.000 | 160.0% |" in re.sub(" +", " ", table)
    assert table in capsys.readouterr().out
    assert figure.read_text().endswith("</svg>\n")
    assert set(stages) == {*markers, *(f"evaluate-{name}" for name in markers)}
