"""When memory pays: the rule on hand-worked returns, and how often it is wrong."""

import numpy as np
import pytest

from rsl_tbptt.tools.simulate.verdict import (
    ENOUGH,
    HISTORY,
    LSTM,
    MARGIN,
    MLP,
    OPEN,
    PAYS,
    STUDENTS,
    USELESS,
    describe,
)
from rsl_tbptt.tools.simulate.verdict import decide as decide_with


def decide(shares, **learning):
    """Decide for students that have learned what they can, but for what is given."""
    return decide_with(shares, {**dict.fromkeys(STUDENTS, 0.0), **learning})


def test_the_interval_is_students_with_one_deviation_for_all():
    found = decide({MLP: [0.4, 0.5, 0.6], HISTORY: [0.7, 0.7, 0.7], LSTM: [0.9, 1.0, 0.8]})
    # squares 0.02, 0 and 0.02 of 6 degrees of freedom; t(0.975; 6) = 2.4469
    half = 2.4469 * (0.04 / 6 * 2 / 3) ** 0.5
    assert (found.memory.mean, found.lstm.mean) == pytest.approx((0.4, 0.2))
    for gain in (found.memory, found.lstm):
        ends = (gain.mean - half, gain.mean + half)
        assert (gain.low, gain.high) == pytest.approx(ends, rel=1e-4)
    assert found.name == PAYS
    assert found.lstm.counts


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((0.5, 0.9, 0.9), ENOUGH),
        ((0.5, 0.9, 0.5), ENOUGH),
        ((0.5, 0.5, 0.9), PAYS),
        ((0.5, 0.88, 0.9), ENOUGH),
        ((0.9, 0.91, 0.5), USELESS),
        ((0.9, 0.5, 0.5), USELESS),
    ],
)
def test_verdicts(means, expected):
    shares = {n: [m - 0.005, m + 0.005] for n, m in zip(STUDENTS, means, strict=True)}
    assert decide(shares).name == expected


def test_one_seed_decides_nothing_and_asks_for_as_many_as_do():
    assert decide({name: [0.5] for name in STUDENTS}).name == OPEN
    rough = {MLP: [0.5, 0.6], HISTORY: [0.6, 0.7], LSTM: [0.6, 0.7]}
    found = decide(rough)
    assert found.name == OPEN
    assert found.seeds_needed is not None
    wide = {name: values * (found.seeds_needed // 2) for name, values in rough.items()}
    # Repeated seeds have the same means and, but for the degrees of freedom, the same deviation.
    assert decide(wide).name != OPEN


@pytest.mark.parametrize("deviations", [(0.02, 0.02, 0.02), (0.0, 0.02, 0.06), (0.06, 0.0, 0.06)])
@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_verdicts_are_rarely_wrong_at_the_limits(deviations, num_seeds):
    random, draws = np.random.default_rng(num_seeds), 400

    def share_of(names, *means):
        drawn = random.normal(means, deviations, (draws, num_seeds, 3))
        found = [decide(dict(zip(STUDENTS, of.T.tolist(), strict=True))) for of in drawn]
        return sum(each.name in names for each in found) / draws

    assert share_of({PAYS, ENOUGH}, 0.9, 0.9, 0.9) <= 0.1
    assert share_of({USELESS}, 0.9, 0.9, 0.9 + MARGIN) <= 0.1
    assert share_of({ENOUGH}, 0.5, 0.9, 0.9 + MARGIN) <= 0.1


def test_students_that_have_hardly_learned_decide_nothing():
    shares = {MLP: [0.1, 0.1], HISTORY: [0.4, 0.4], LSTM: [0.1, 0.1]}
    assert decide(shares).name == OPEN
    early = result(2)
    early["teacher"]["mean_return"] = 400.0
    assert "Not decided: the best student has 47.6% of the" in describe(early)
    assert "--resume" not in describe(early)


@pytest.mark.parametrize(
    ("means", "learning", "expected"),
    [
        ((0.5, 0.9, 0.9), {MLP: 0.3}, ENOUGH),
        ((0.5, 0.9, 0.9), {MLP: 0.4}, OPEN),
        ((0.5, 0.9, 0.9), {LSTM: 0.1}, PAYS),  # which memory is open
        ((0.5, 0.8, 0.9), {HISTORY: 0.3}, PAYS),
        ((0.9, 0.9, 0.5), {HISTORY: 0.06}, OPEN),
        ((0.9, 0.91, 0.9), {LSTM: 0.1}, OPEN),
    ],
)
def test_what_students_may_still_learn_widens_the_intervals(means, learning, expected):
    shares = {n: [m - 0.005, m + 0.005] for n, m in zip(STUDENTS, means, strict=True)}
    found = decide(shares, **learning)
    assert found.name == expected
    assert (found.seeds_needed is None) == (learning != {MLP: 0.3})


def test_more_seeds_are_not_advised_where_more_training_is_needed():
    early = result(3)
    for student in early["students"]:
        student["last_gain"] = 100.0 * (student["name"] == MLP)
    shown = describe(early)
    assert "Not decided: it gains 45.0% (-" in shown
    assert "still gained, mlp 50.0%, history 0.0%, lstm 0.0%: if that is much, begin" in shown
    assert "--resume" not in shown


def test_more_than_a_hundred_seeds_decide_too():
    shares = {MLP: [0.5, 0.52] * 60, HISTORY: [0.9, 0.92] * 60, LSTM: [0.9, 0.92] * 60}
    assert decide(shares).seeds_needed == 120


def result(num_seeds, **more):
    """Return what a comparison's file holds, without what the tables leave out."""
    returns = {MLP: 100.0, HISTORY: 180.0, LSTM: 190.0}
    more_of_each = {"seconds": 60.0, "last_gain": -1.0, "jitter": 0.1}
    students = [
        {"name": name, "seed": seed, "mean_return": value + seed} | more_of_each
        for seed in range(num_seeds)
        for name, value in returns.items()
    ]
    teacher = {"mean_return": 200.0, "confidence_interval": [190.0, 210.0], "timed_out": 0.9}
    teacher["step_seconds"] = 0.02
    plan = {"history": 5, "gradient_length": 24}
    return {"plan": plan, "teacher": teacher, "students": students, **more}


def test_the_report():
    shown = describe(result(3, looks_back=30))
    lines = shown.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["teacher", *STUDENTS]
    assert "200 (190 to 210)" in lines[1]
    assert "10.0%" in lines[1]  # falls
    assert "191 (189 to 193)" in lines[4]
    assert "95.5% (94.3% to 96.7%)" in lines[4]
    assert "success" not in lines[0]
    assert "Memory pays: it gains 45.0% (" in shown
    assert "5 steps of history are not enough: the LSTM gains 5.0% (" in shown
    assert "gap, what the best with memory lacks of the teacher: 4.5% (3.3% to 5.7%)" in shown
    assert "back 30 steps, 0.6 s: no less than the gradient, so try --gradient-length 60" in shown


def test_a_comparison_that_was_broken_off_is_reported_as_far_as_it_is_finished():
    broken = result(2)
    broken["students"].pop()
    shown = describe(broken)
    assert "Not decided: it gains 45.0% (one seed) of" in shown
    assert "more minutes would decide that, if the means stay: --resume --seeds 2." in shown
    broken["students"] = broken["students"][:2]
    assert describe(broken).endswith("No seed is finished.")


def test_below_0_more_is_still_better_and_the_bias_is_that_of_pairs():
    one = result(2)
    one["teacher"]["mean_return"] = -100.0
    for student in one["students"]:
        student["mean_return"] -= 300.0
    for seed in range(2):
        one["students"] += [
            {"name": f"{name}_sees_all", "seed": seed, "seconds": 1.0, "mean_return": value - seed}
            for name, value in ((MLP, -110.0), (LSTM, -120.0))
        ]
    shown = describe(one)
    assert shown.splitlines()[2].split()[:3] == [MLP, "2", "-200"]
    assert "0.5% (" in shown.splitlines()[2]
    assert "where nothing is hidden: 10.0% (10.0% to 10.0%)." in shown
