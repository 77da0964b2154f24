"""The comparison over seeds, on curves worked by hand."""

import math
import re
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from rsl_tbptt.files import write_json
from scripts.pipeline import curves
from scripts.pipeline.experiments import FINETUNE, REPOSITORY, load_experiment
from scripts.pipeline.figure import PALETTE, band, policy_styles
from scripts.pipeline.learning import (
    Learning,
    compare,
    converged_after,
    format_markdown,
    judge,
    lowest_share,
    means,
    read_learnings,
)
from scripts.pipeline.run import Record
from scripts.pipeline.sweep import Sweep, Variant

SWEEP = Sweep(
    experiment="",
    seeds=[1, 2],
    policies={"teacher": Variant()},
    at_least={"share": 0.95},
    at_most={"steps": 2.0},
)
DISTILLATION = SWEEP.model_copy(update={"at_least": {"lowest": 0.85}, "at_most": {"converged": 4}})


def learning(policy, seed=1, curve=None, evaluated_return=10.0, **changes):
    values: dict[str, Any] = {"iterations": 10, "steps_per_iteration": 100, "num_earlier_steps": 0}
    values |= {"curve": {5: 1.0, 10: 10.0} if curve is None else curve}
    values |= {"policy": policy, "seed": seed, "evaluated_return": evaluated_return}
    return Learning(**(values | changes))


POLICIES = ("teacher", "student", "scratch")
TEACHER = learning("teacher", curve={2: 9.6, 5: 10.4, 10: 10.0})


def compared(*learnings):
    return compare([TEACHER, *learnings], "teacher")[1:]


def curve(*returns):
    return dict(enumerate(returns, start=1))


@pytest.mark.parametrize(
    ("returns", "converged", "lowest"),
    [
        ((1.0, 9.2, 9.5, 9.1, 9.9), 3, 0.91),
        ((1.0, 9.5, 9.0, 9.6), 2, 0.9),  # 90 % is still kept
        ((1.0, 9.6, 2.0, 9.1, 9.6), 4, 0.2),  # from the end of the last dip on
        ((9.2, 5.0, 9.5, 9.5), 3, 0.5),  # the dip was before 95 %
        ((1.0, 9.6, 9.6, 8.9), None, 0.89),  # ends in a dip
        ((1.0, 9.4, 9.4, 9.4), None, 0.94),  # never at 95 %
        ((1.0, 8.9, 8.9, 3.0), None, None),  # never at 90 %
        ((), None, None),
    ],
)
def test_converged_and_lowest_of_curves_worked_by_hand(returns, converged, lowest):
    assert converged_after(curve(*returns), 10.0) == converged
    assert lowest_share(curve(*returns), 10.0) == pytest.approx(lowest)


def test_measure_in_training_is_the_teachers_last_return_and_steps_as_a_student_count():
    returns = {4: 9.4, 5: 9.5, 6: 9.0, 8: 9.9}
    (row,) = compared(learning("scratch", curve=returns, num_earlier_steps=700))
    assert (row["converged"], row["lowest"], row["steps"]) == (5, 0.9, 1.7)


def test_limits_of_return_and_steps():
    kept = [learning("a", evaluated_return=9.5, num_earlier_steps=1000), learning("a", seed=1)]
    missed = [learning("a", evaluated_return=9.4, num_earlier_steps=1001)]
    assert judge(compared(*kept, *missed), SWEEP) == {
        "of the teacher's: at least 95.0%": "2 of 3",
        "steps, of the teacher's: at most 2.00": "2 of 3",
    }


def test_each_seed_is_compared_with_its_own_teacher():
    other = learning("teacher", seed=2, curve={10: 20.0}, evaluated_return=20.0)
    rows = compared(learning("scratch"), other, learning("scratch", seed=2))
    assert [row["share"] for row in rows] == [1.0, 1.0, 0.5]
    assert [row["lowest"] for row in rows] == [1.0, 1.0, None]


def test_shares_of_a_return_that_is_not_positive_are_not_given():
    teacher = learning("teacher", curve={1: -1.0}, evaluated_return=-1.0)
    (row,) = compare([teacher], "teacher")
    assert math.isnan(row["share"])
    assert (row["converged"], row["lowest"]) == (None, None)
    assert {*judge([row], DISTILLATION).values()} == {"0 of 1"}


def cells(table):
    """Return the cells of the tables' rows, headings included."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_tables_have_a_row_per_policy_and_one_per_seed():
    learnings = [
        TEACHER,
        learning("student", head_errors={"velocity": 0.25}),
        learning("scratch", curve={10: 1.0}, evaluated_return=2.0, evaluated={1: 9.5, 3: 9.0}),
        learning("teacher", seed=2),
        learning("student", seed=2, head_errors={"velocity": 0.5}),
        learning("scratch", seed=2, num_earlier_steps=1000, evaluated={1: 9.0, 2: 8.9}),
    ]
    sweep = SWEEP.model_copy(update={"evaluate_after": {"scratch": [1, 2]}})
    table = format_markdown(compare(learnings, "teacher"), "teacher", sweep)
    assert "reached 95% of the teacher's final return" in table
    assert "starts low. Evaluated at 90% from: policies" in table
    rows = cells(table)
    expected = [
        ["teacher", "1 to 2", "10.000", "100.0%", "1.00", "2 to 10", "96% to 100%"],
        ["student", "1 to 2", "10.000", "100.0%", "1.00", "10", "100%"],
        ["scratch", "1 to 2", "2.000 to 10.000", "20.0% to 100.0%", "1.00 to 2.00"],
    ]
    expected[2] += ["10, 1 never", "100%, 1 never"]
    assert [row[:7] for row in rows[1:4]] == expected
    of_seeds = ["teacher", "1", "10.000", "100.0%", "1.00", "2", "96%"]
    assert rows[5][:7] == of_seeds
    assert [row[:2] for row in rows[5:]] == [[p, s] for p in POLICIES for s in "12"]
    policies, seeds = (
        {column[0]: [*column[1:]] for column in zip(*table, strict=True)}
        for table in (rows[:4], rows[4:])
    )
    assert policies["of the teacher's: at least 95.0%"] == ["2 of 2", "2 of 2", "1 of 2"]
    assert policies["error of velocity"] == ["", "0.25 to 0.5", ""]
    assert policies["evaluated at 90% from"] == ["", "", "1, 1 never"]
    assert seeds["error of velocity"] == ["", "", "0.25", "0.5", "", ""]
    assert seeds["evaluated at 90% from"] == ["", "", "", "", "1", "1 never"]


def test_means_over_seeds_have_intervals_and_differences_are_paired():
    sweep = SWEEP.model_copy(update={"policies": {"gru": Variant(like="student")}})
    returns = {"student": (9.0, 8.0, 7.0), "gru": (9.5, 8.4, 7.6)}
    learnings = [
        learning(policy, seed=seed, evaluated_return=value)
        for policy, values in {"teacher": (10.0,) * 3, **returns}.items()
        for seed, value in enumerate(values)
    ]
    rows = compare(learnings, "teacher")
    students, grus = ([row for row in rows if row["policy"] == name] for name in returns)
    # Student's t of 3 values: 4.303 standard errors.
    assert means(students, rows, sweep) == {"mean (95 % confidence)": "80.0% (55.2% to 104.8%)"}
    assert means(grus, rows, sweep)["more, seed by seed"] == "+5.0% (+2.5% to +7.5%)"
    assert means(grus[:1], rows, sweep)["more, seed by seed"] == "-"


def test_band_covers_the_steps_that_all_seeds_have():
    curves = [{10: 1.0, 20: 2.0, 30: 3.0}, {20: 4.0, 30: 3.0}, {20: 6.0, 30: 0.0, 40: 1.0}]
    assert band(curves) == ([20, 30], [4.0, 2.0], [2.0, 0.0], [6.0, 3.0])


@pytest.fixture
def experiment():
    return load_experiment(FINETUNE)


@pytest.fixture
def records(tmp_path, experiment):
    """Write the results of the stages of seed 7: 2 logged iterations of 10 steps."""
    from torch.utils.tensorboard import SummaryWriter

    records = {}
    for place, name in enumerate(experiment.policies):
        log = tmp_path / "logs" / name
        with SummaryWriter(log_dir=str(log)) as writer:
            for iteration in range(2):
                writer.add_scalar("Train/mean_reward", place + iteration, iteration)
        (log / "params").mkdir()
        (log / "params" / "agent.yaml").write_text(yaml.safe_dump({"num_steps_per_env": 10}))
        (log / "model_1.pt").touch()
        heads = {"velocity": {"rmse": 0.5, "rmse_by_column": [0.5]}} if name == "student" else {}
        evaluation = {"mean_return": 5.0 + place, "auxiliary": heads}
        write_json(tmp_path / "evaluation" / f"{name}-7.json", evaluation)
        records[f"{name}-7"] = Record(
            output=f"logs/{name}/model_1.pt",
            command="",
            seconds=1.0,
            peak_memory_gb=1.0,
            finished_at=1.0,
        )
    return records


def test_stages_are_read(tmp_path, experiment, records):
    few = experiment.policies["student"].model_copy(update={"num_envs": 3})
    experiment = experiment.model_copy(update={"policies": experiment.policies | {"student": few}})
    sweep = SWEEP.model_copy(update={"seeds": [7], "evaluate_after": {"scratch": [2, 1]}})
    for after in (1, 2):
        file = tmp_path / "evaluation" / f"scratch-7-after-{after}.json"
        write_json(file, {"mean_return": float(after)})
    learnings = {one.policy: one for one in read_learnings(tmp_path, experiment, sweep, records)}
    assert learnings["student"].curve == {1: 1.0, 2: 2.0}
    assert learnings["student"].steps_per_iteration == 3 * 10
    teachers = experiment.num_envs * 10 * experiment.policies["teacher"].iterations
    assert learnings["teacher"].num_steps == teachers
    earlier = {name: one.num_earlier_steps for name, one in learnings.items()}
    students = 3 * 10 * experiment.policies["student"].iterations
    assert earlier == {"teacher": 0, "student": 0, "finetuned": students, "scratch": 0}
    assert [one.evaluated_return for one in learnings.values()] == [5.0, 6.0, 7.0, 8.0]
    assert [one.head_errors for one in learnings.values()] == [{}, {"velocity": 0.5}, {}, {}]
    evaluated = [[*one.evaluated.items()] for one in learnings.values()]
    assert evaluated == [[], [], [], [(1, 1.0), (2, 2.0)]]


def test_sweep_ends_with_table_and_figure(tmp_path, records, monkeypatch, capsys):
    def finished_before(stages, folder, device, jobs):
        assert (folder, device, jobs) == (tmp_path, "cpu", 2)
        names = {*records, *(f"evaluate-{name}" for name in records)}
        assert {stage.name for stage in stages} == names
        return records

    monkeypatch.setattr(curves, "run_stages", finished_before)
    sweep = yaml.safe_load((REPOSITORY / "configs" / "learning_curves.yaml").read_text())
    sweep |= {"experiment": str(FINETUNE), "seeds": [7]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    figure = tmp_path / "curves.svg"
    arguments = [str(tmp_path / "sweep.yaml"), "--output", str(tmp_path), "--figure", str(figure)]
    monkeypatch.setattr("sys.argv", ["curves.py", *arguments, "--jobs", "2"])
    assert curves.main() == 0
    report = (tmp_path / "report.md").read_text()
    assert "| scratch | 7 | 8.000 | 160.0% |" in re.sub(" +", " ", report)
    assert "](curves.svg)" in report
    assert f"torch {version('torch')}" in report
    assert report in capsys.readouterr().out
    assert figure.read_text().endswith("</svg>\n")


def test_a_policy_has_one_colour_and_label_in_every_figure():
    for names in (["teacher", "student", "gru", "sru"], ["gru", "memoryless", "student", "rsl_rl"]):
        styles = policy_styles(names)
        assert [*styles] == names
        colours = [colour for _, colour in styles.values()]
        assert {*colours} <= {*PALETTE}
        assert len({*colours}) == len(names)
        assert styles["gru"][0] == "gru"
        assert styles["student"] == ("student of rsl_tbptt (this)", PALETTE[0])
