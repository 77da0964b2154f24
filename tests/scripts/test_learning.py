"""The comparison over seeds, on curves worked by hand."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml

from rsl_tbptt.files import write_json
from scripts.pipeline.experiments import FINETUNE, load_experiment
from scripts.pipeline.figure import by_policy, policy_styles, save_jitter, save_shares
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
        ((1.0, 9.5, 9.0, 9.6), 2, 0.9),  # 90 % is still kept
        ((1.0, 9.6, 2.0, 9.1, 9.6), 4, 0.2),  # from the end of the last dip on
        ((9.2, 5.0, 9.5, 9.5), 3, 0.5),  # the dip was before 95 %
        ((1.0, 9.6, 9.6, 8.9), None, 0.89),  # ends in a dip
        ((1.0, 8.9, 8.9, 3.0), None, None),  # never at 90 %
        ((), None, None),
    ],
)
def test_converged_and_lowest_of_curves_worked_by_hand(returns, converged, lowest):
    assert converged_after(curve(*returns), 10.0) == converged
    assert lowest_share(curve(*returns), 10.0) == pytest.approx(lowest)


def test_each_seed_is_compared_with_its_own_teacher_and_with_the_limits():
    worse = learning("teacher", seed=2, curve={10: 20.0}, evaluated_return=20.0)
    negative = learning("teacher", seed=3, curve={1: -1.0}, evaluated_return=-1.0)
    returns = {4: 9.4, 5: 9.5, 6: 9.0, 8: 9.9}
    rows = compared(
        learning("scratch", curve=returns, evaluated_return=9.5, num_earlier_steps=1000),
        learning("scratch", curve=returns, evaluated_return=9.4, num_earlier_steps=1001),
        worse,
        learning("scratch", seed=2),
        negative,
    )
    assert [row["share"] for row in rows[:-1]] == pytest.approx([0.95, 0.94, 1.0, 0.5])
    assert math.isnan(rows[-1]["share"])  # of a return that is not positive
    assert [row["steps"] for row in rows] == [2.0, 2.001, 1.0, 1.0, 1.0]
    assert [row["converged"] for row in rows] == [5, 5, 10, None, None]
    assert [row["lowest"] for row in rows] == [0.9, 0.9, 1.0, None, None]
    assert judge(rows[:2], SWEEP) == {
        "of the teacher's: at least 95.0%": "1 of 2",
        "steps, of the teacher's: at most 2.00": "1 of 2",
    }
    assert {*judge(rows[-1:], DISTILLATION).values()} == {"0 of 1"}


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


@pytest.fixture
def records(tmp_path):
    """Write the results of the stages of seed 7; an iteration has 10 steps."""
    from torch.utils.tensorboard import SummaryWriter

    def write_run(name, day, *returns):
        log = tmp_path / "logs" / "rsl_rl" / "e" / f"2026-01-{day}_00-00-00_{name}"
        with SummaryWriter(log_dir=str(log)) as writer:
            for iteration, value in enumerate(returns):
                writer.add_scalar("Train/mean_reward", value, iteration)
        (log / "params").mkdir()
        (log / "params" / "agent.yaml").write_text(yaml.safe_dump({"num_steps_per_env": 10}))
        torch.save({"actor_state_dict": {"mlp.0.bias": torch.zeros(3)}}, log / "model_1.pt")
        return f"{log.relative_to(tmp_path)}/model_1.pt"

    records = {}
    for place, name in enumerate(load_experiment(FINETUNE).policies):
        output = write_run(f"{name}-7", "01", place, place + 1)
        write_json(tmp_path / "evaluation" / f"{name}-7.json", {"mean_return": 5.0 + place})
        records[f"{name}-7"] = Record(output=output, command="", began_at=0.0)
        records[f"evaluate-{name}-7"] = Record(output="", command="", began_at=0.0)
    # Training went on after its first checkpoint, whose number is repeated.
    output = write_run("scratch-7_resumed", "02", 7.0, 8.0)
    records["scratch-7"] = replace(records["scratch-7"], output=output)
    return records


def test_stages_are_read(tmp_path, records):
    experiment = load_experiment(FINETUNE)
    few = experiment.policies["student"].model_copy(update={"num_envs": 3})
    experiment = experiment.model_copy(update={"policies": experiment.policies | {"student": few}})
    sweep = SWEEP.model_copy(update={"seeds": [7], "evaluate_after": {"scratch": [1]}})
    write_json(tmp_path / "evaluation" / "scratch-7-after-1.json", {"mean_return": 1.0})
    records["evaluate-scratch-7-after-1"] = Record(output="", command="", began_at=0.0)
    found = read_learnings(tmp_path, experiment, sweep, records)
    teacher, student, tuned, scratch = found
    assert [one.policy for one in found] == ["teacher", "student", "finetuned", "scratch"]
    assert [one.evaluated_return for one in found] == [5.0, 6.0, 7.0, 8.0]
    assert student.curve == {1: 1.0, 2: 2.0}
    assert scratch.curve == {1: 3.0, 2: 7.0, 3: 8.0}  # without what came after the checkpoint
    assert student.steps_per_iteration == 3 * 10
    assert teacher.num_steps == experiment.num_envs * 10 * teacher.iterations
    assert [one.num_earlier_steps for one in found] == [0, 0, student.num_steps, 0]
    assert (tuned.evaluated, scratch.evaluated) == ({}, {1: 1.0})
    del records["evaluate-student-7"], records["finetuned-7"]  # not finished
    rest = read_learnings(tmp_path, experiment, sweep, records)
    assert [one.policy for one in rest] == ["teacher", "scratch"]


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


def test_shares_of_tasks_are_drawn_in_their_order(tmp_path):
    tasks = {
        name: [
            learning(policy, seed, evaluated_return=value * share)
            for seed, value in ((1, 10.0), (2, 20.0))
            for policy, share in (("teacher", 1.0), ("student", of_student), ("mine", 0.5))
        ]
        for name, of_student in (("none", 1.0), ("much", 0.8))
    }
    save_shares(tasks, "teacher", tmp_path / "figures" / "tasks.svg")
    drawn = (tmp_path / "figures" / "tasks.svg").read_text()
    assert drawn.index(">none<") < drawn.index(">much<")
    assert ">student of rsl_tbptt (this)<" in drawn
    assert ">mine<" in drawn


def test_more_policies_than_colours_are_drawn():
    names = ["teacher", "student", *map(str, range(12))]
    assert [*policy_styles(names)] == names
    assert len({policy_styles(names)[name][1] for name in names[:7]}) == 7


def test_return_is_drawn_over_jitter_by_seed(tmp_path):
    seeds = [
        learning(policy, seed, evaluation={"mean_return": value * share, "jitter": 0.1 * seed})
        for seed, value in ((1, 10.0), (2, 20.0))
        for policy, share in (("teacher", 1.0), ("mine", 0.5))
    ]
    ((name, rows),) = by_policy(seeds, "teacher").items()
    assert (name, [row["share"] for row in rows]) == ("mine", [0.5, 0.5])
    save_jitter(seeds, "teacher", tmp_path / "jitter.svg")
    assert ">mine<" in (tmp_path / "jitter.svg").read_text()
