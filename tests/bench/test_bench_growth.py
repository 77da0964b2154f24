"""What larger cases take is told from smaller ones that are cut into parts alike."""

from dataclasses import replace

import pytest

from rsl_tbptt.bench import growth
from rsl_tbptt.bench.case import Case, build, fill
from rsl_tbptt.bench.growth import Growth, check_plan, fit
from rsl_tbptt.bench.memory import Memory, Plan
from rsl_tbptt.bench.profile import share_of_steps

CASE = Case(
    algorithm="ppo",
    num_envs=4096,
    num_steps=8,
    gradient_length=8,
    num_mini_batches=16,
    num_learning_epochs=8,
)


@pytest.fixture
def measured(monkeypatch):
    """Let rsl_rl take 100 + N megabytes and 0.1 N seconds for an epoch, us a tenth of that."""
    cases = []

    def measure(case, library):
        cases.append((library, case))
        share = 1.0 if library == "rsl_rl" else 0.1
        peak = share * (100.0 + case.num_envs)
        seconds = share * 0.1 * case.num_envs * case.num_learning_epochs
        return Memory(storage=0.0, update_peak=peak / 2, process_peak=peak, seconds=seconds)

    monkeypatch.setattr(growth, "measure_in_own_process", measure)
    return cases


@pytest.mark.parametrize(
    ("megabytes", "seconds", "num_envs", "num_epochs", "by_memory"),
    [
        (1e6, 1e6, 4096, 8, 4096),  # all of it
        (1000.0, 1e6, 896, 8, 896),  # 900 fit, and 896 is a multiple of the mini-batches
        (1000.0, 100.0, 896, 1, 896),  # an epoch of these takes 90 s
        (1000.0, 50.0, 496, 1, 896),  # one of 500 takes 50 s
    ],
)
def test_rsl_rl_gets_as_much_as_there_is(
    measured, megabytes, seconds, num_envs, num_epochs, by_memory
):
    found = fit("a case", CASE, megabytes, seconds)
    assert (found.case.num_envs, found.case.num_learning_epochs) == (num_envs, num_epochs)
    assert (found.by_memory, found.wanted) == (by_memory, CASE)
    sizes = [(library, case.num_envs, case.num_learning_epochs) for library, case in measured]
    assert sizes == [("rsl_rl", n, 1) for n in (128, 256, 384)]


def test_limits_that_leave_nothing_are_refused(measured):
    with pytest.raises(ValueError, match=r"leave 16 environments of a case, expected at least 32:"):
        fit("a case", CASE, 120.0, 1e6)
    assert measured


def test_noise_that_shrinks_with_size_sets_no_limit():
    memory = Memory(storage=0.0, update_peak=1.0, process_peak=1.0)
    shrinking = Growth(num_envs=[1, 2], measured=[memory, replace(memory, process_peak=0.5)])
    assert shrinking.most("process_peak", 100.0) > 1e9


@pytest.mark.parametrize(
    ("num_micro_batches", "sizes"), [(1, [512, 1024, 1536]), (4, [1024, 2048, 3072])]
)
def test_a_plan_is_held_against_sizes_that_are_cut_alike(
    measured, monkeypatch, num_micro_batches, sizes
):
    plan = Plan(predicted=250.0, num_envs=256, num_micro_batches=num_micro_batches)
    monkeypatch.setattr(growth, "plan_in_own_process", lambda case: plan)
    check = check_plan("a case", CASE)
    assert [(library, case.num_envs) for library, case in measured] == [
        ("rsl_tbptt", size) for size in sizes
    ]
    assert check.extrapolated == pytest.approx((100 + 4096) / 20)
    assert check.error == pytest.approx(250 / 209.8 - 1)


@pytest.mark.slow
def test_the_plan_of_two_layers_is_what_larger_updates_take():
    case = replace(
        CASE,
        num_envs=1024,
        num_steps=32,
        gradient_length=32,
        num_mini_batches=4,
        rnn_num_layers=2,
        rnn_hidden_dim=64,
    )
    check = check_plan("a case", case)
    assert abs(check.error) < 0.1


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
@pytest.mark.parametrize(("rnn_type", "num_gates"), [("lstm", 4), ("gru", 3)])
def test_steps_are_told_from_what_runs_at_once(rnn_type, num_gates):
    """By hand, for actor and critic with two mini-batches each; no gradient before step 0."""
    hidden, obs, steps, envs = 16, 48, 6, 64  # as many as a layer of the MLP has outputs
    case = replace(
        CASE,
        num_envs=2 * envs,
        num_steps=steps,
        gradient_length=steps,
        num_mini_batches=2,
        num_learning_epochs=1,
        rnn_type=rnn_type,
        rnn_hidden_dim=hidden,
    )
    gates = num_gates * hidden
    forward, backward = steps * (obs + 1 + hidden) * gates, (steps - 1) * gates * hidden
    found = share_of_steps(case)
    assert found.flops == 2 * 2 * 2 * envs * (forward + backward)
    assert found.num_envs == envs
    assert 0 < found.share < 1
    assert found.rate == found.flops / found.seconds


def test_more_epochs_change_more():
    case = replace(CASE, num_envs=32, num_steps=2, gradient_length=2, rnn_hidden_dim=8)
    steps = []
    for num_epochs in (1, 3):
        algorithm = build(replace(case, num_learning_epochs=num_epochs), "rsl_rl")
        fill(algorithm, case, seed=0)
        algorithm.optimizer.register_step_post_hook(lambda *_, n=num_epochs: steps.append(n))
        algorithm.update()
    assert (steps.count(1), steps.count(3)) == (16, 48)
