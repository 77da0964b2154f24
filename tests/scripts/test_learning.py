"""The comparison over seeds, on curves worked by hand."""

import math
import re
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest
import torch
import yaml

from rsl_tbptt.files import write_json
from scripts.pipeline import curves
from scripts.pipeline.experiments import FINETUNE, REPOSITORY, load_experiment
from scripts.pipeline.figure import band
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
    evaluation = {"mean_return": evaluated_return}
    values |= {"policy": policy, "seed": seed, "evaluation": evaluation}
    return Learning(**(values | changes))


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
        log = tmp_path / "logs" / "rsl_rl" / "e" / f"2026-01-01_00-00-00_{name}-7"
        with SummaryWriter(log_dir=str(log)) as writer:
            for iteration in range(2):
                writer.add_scalar("Train/mean_reward", place + iteration, iteration)
        (log / "params").mkdir()
        (log / "params" / "agent.yaml").write_text(yaml.safe_dump({"num_steps_per_env": 10}))
        torch.save({"actor_state_dict": {"mlp.0.bias": torch.zeros(3)}}, log / "model_1.pt")
        evaluation = {"mean_return": 5.0 + place}
        write_json(tmp_path / "evaluation" / f"{name}-7.json", evaluation)
        records[f"{name}-7"] = Record(
            output=f"{log.relative_to(tmp_path)}/model_1.pt",
            command="",
            began_at=0.0,
        )
        records[f"evaluate-{name}-7"] = Record(output="", command="", began_at=0.0)
    return records


def test_stages_are_read(tmp_path, experiment, records):
    few = experiment.policies["student"].model_copy(update={"num_envs": 3})
    experiment = experiment.model_copy(update={"policies": experiment.policies | {"student": few}})
    sweep = SWEEP.model_copy(update={"seeds": [7], "evaluate_after": {"scratch": [2, 1]}})
    for after in (1, 2):
        file = tmp_path / "evaluation" / f"scratch-7-after-{after}.json"
        write_json(file, {"mean_return": float(after)})
        records[f"evaluate-scratch-7-after-{after}"] = Record(output="", command="", began_at=0.0)
    learnings = {one.policy: one for one in read_learnings(tmp_path, experiment, sweep, records)}
    assert learnings["student"].curve == {1: 1.0, 2: 2.0}
    assert learnings["student"].steps_per_iteration == 3 * 10
    teachers = experiment.num_envs * 10 * experiment.policies["teacher"].iterations
    assert learnings["teacher"].num_steps == teachers
    earlier = {name: one.num_earlier_steps for name, one in learnings.items()}
    students = 3 * 10 * experiment.policies["student"].iterations
    assert earlier == {"teacher": 0, "student": 0, "finetuned": students, "scratch": 0}
    assert [one.evaluated_return for one in learnings.values()] == [5.0, 6.0, 7.0, 8.0]
    evaluated = [[*one.evaluated.items()] for one in learnings.values()]
    assert evaluated == [[], [], [], [(1, 1.0), (2, 2.0)]]


def test_costs_worked_by_hand():
    evaluation = {"mean_return": 9.0, "timed_out": 0.75, "velocity_error": 0.25}
    student = learning(
        "student",
        curve={1: 1.0, 2: 9.0, 3: 8.0, 4: 9.6},
        evaluation=evaluation,
        collecting={1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0},
        learning={1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5},
        num_earlier_steps=1_000_000,
        num_parameters=410_508,
        gpu_memory_gb=3.25,
    )
    (row,) = compared(student)
    assert (row["steps_0.9"], row["seconds_0.9"]) == (1.0002, 4.0)
    assert (row["steps_0.97"], row["seconds_0.97"]) == (None, None)
    assert (row["falls"], row["velocity_error"]) == (0.25, 0.25)
    assert (row["collecting"], row["learning"]) == (10.0, 2.0)
    table = format_markdown([row], "teacher", SWEEP)
    assert "| 410,508 | 1.00 |" in re.sub(" +", " ", table)


def test_a_training_in_parts_has_one_curve(tmp_path, experiment, records):
    """A part repeats the number of its checkpoint; what the killed one did after it is dropped."""
    from torch.utils.tensorboard import SummaryWriter

    first = (tmp_path / records["scratch-7"].output).parent
    rest = first.with_name("2026-01-02_00-00-00_scratch-7_resumed")
    (rest / "params").mkdir(parents=True)
    for name in ("params/agent.yaml", "model_1.pt"):
        (rest / name).write_bytes((first / name).read_bytes())
    with SummaryWriter(log_dir=str(rest)) as writer:
        for iteration in (0, 1):
            writer.add_scalar("Train/mean_reward", 7.0 + iteration, iteration)
    output = (rest / "model_1.pt").relative_to(tmp_path).as_posix()
    records["scratch-7"] = replace(records["scratch-7"], output=output)
    sweep = SWEEP.model_copy(update={"seeds": [7]})
    learnings = {one.policy: one for one in read_learnings(tmp_path, experiment, sweep, records)}
    assert learnings["scratch"].curve == {1: 3.0, 2: 7.0, 3: 8.0}


def test_policies_without_an_evaluation_are_left_out(tmp_path, experiment, records):
    del records["evaluate-student-7"], records["finetuned-7"]
    sweep = SWEEP.model_copy(update={"seeds": [7, 8]})
    found = read_learnings(tmp_path, experiment, sweep, records)
    assert [one.policy for one in found] == ["teacher", "scratch"]


def test_sweep_ends_with_table_and_figure(tmp_path, records, monkeypatch, capsys):
    def finished_before(stages, folder, device, jobs, minutes):
        assert (folder, device, jobs) == (tmp_path, "cpu", 2)
        policies = [name for name in records if not name.startswith("evaluate")]
        names = {*policies, *(f"evaluate-{name}" for name in policies)}
        assert {stage.name for stage in stages} == names == {*records}
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
