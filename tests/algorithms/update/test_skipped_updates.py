"""Updates that met NaN or inf are skipped and counted; too many in a row end the training."""

import copy
import warnings

import pytest
import torch
from support.helpers import make_distillation, make_ppo, roll_out, roll_out_ppo

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

NAN, INF = float("nan"), float("inf")


class Distilling:
    """Distillation with a normaliser, 6 steps by 4 environments."""

    models = ("student",)

    def __init__(self, **options):
        normalized = {"obs_normalization": True}
        self.algorithm = make_distillation(
            TbpttDistillation, 6, 4, student_kwargs=normalized, gradient_length=2, **options
        )

    def roll_out(self, seed, poison=None):
        on_step = poison and (lambda step, obs: poison(step, obs, torch.zeros(4)))
        roll_out(self.algorithm, seed, on_step=on_step)


class Reinforcing:
    """PPO with a normaliser, 6 steps by 4 environments."""

    models = ("actor", "critic")

    def __init__(self, **options):
        normalized = {"obs_normalization": True}
        self.algorithm = make_ppo(TbpttPPO, 6, 4, actor_kwargs=normalized, **options)

    def roll_out(self, seed, poison=None):
        roll_out_ppo(self.algorithm, seed, on_step=poison)


@pytest.fixture(params=[Distilling, Reinforcing])
def training(request):
    return request.param


def trained(training, **options):
    run = training(**options)
    run.roll_out(0)
    run.algorithm.update()
    return run


def everything(run):
    """Return all that an update may change."""
    algorithm = run.algorithm
    states = [getattr(algorithm, name).state_dict() for name in run.models]
    return copy.deepcopy([*states, algorithm.optimizer.state_dict(), algorithm.learning_rate])


def assert_equal(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key, value in left.items():
            assert_equal(value, right[key])
    elif isinstance(left, list):
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    else:
        equal = torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
        assert equal


def bad(value, env=2, step=3):
    def poison(at, obs, rewards):
        if at == step:
            obs["policy"][env, 0] = value

    return poison


@pytest.mark.parametrize("value", [NAN, INF, 1e25])
def test_training_goes_on_as_if_the_rollout_had_not_been(training, value):
    run = trained(training)
    before = everything(run)
    run.roll_out(1, bad(value))
    with pytest.warns(UserWarning, match=r"'policy' of environments \[2\], first at step 3.*skipp"):
        assert run.algorithm.update() == {"skipped_updates": 1.0}
    assert_equal(everything(run), before)
    run.roll_out(2)
    metrics = run.algorithm.update()
    assert metrics["skipped_updates"] == 1.0
    assert len(metrics) > 4


def test_each_source_is_warned_of_once(training):
    run = trained(training)
    for seed, env in ((1, 2), (2, 1)):
        run.roll_out(seed, bad(NAN, env))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run.algorithm.update()
        assert len(seen) == (1 if seed == 1 else 0)

    def other(step, obs, rewards):
        obs["state"][0] = NAN

    run.roll_out(3, other)
    with pytest.warns(UserWarning, match="observation group 'state'"):
        assert run.algorithm.update() == {"skipped_updates": 3.0}


@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
def test_too_many_in_a_row_end_the_training_and_change_nothing(training):
    run = trained(training, max_skipped_updates=2)
    before = everything(run)
    for round_ in range(2):  # training can be started again
        run.roll_out(1, bad(NAN))
        assert run.algorithm.update() == {"skipped_updates": 2.0 * round_ + 1}
        run.roll_out(1, bad(NAN))
        with pytest.raises(ValueError, match=r"2 updates in a row met .* max_skipped_updates"):
            run.algorithm.update()
        assert run.algorithm.storage.step == 0
    assert_equal(everything(run), before)


@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
def test_a_good_update_between_them_starts_the_count_again(training):
    run = trained(training, max_skipped_updates=2)
    for _ in range(3):
        run.roll_out(1, bad(NAN))
        run.algorithm.update()
        run.roll_out(2)
        metrics = run.algorithm.update()
    assert metrics["skipped_updates"] == 3.0


def test_an_interrupted_update_leaves_no_trace(training, monkeypatch):
    run = trained(training, num_learning_epochs=2)
    before = everything(run)
    run.roll_out(1)
    step, steps = run.algorithm._optimizer_step, []

    def interrupted(*args):
        steps.append(step(*args))
        if len(steps) == 2:
            raise KeyboardInterrupt
        return steps[-1]

    monkeypatch.setattr(run.algorithm, "_optimizer_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.algorithm.update()
    assert_equal(everything(run), before)
    monkeypatch.undo()
    run.roll_out(2)
    assert run.algorithm.update()["skipped_updates"] == 0.0


def test_a_rollout_that_broke_off_is_dropped_where_training_starts_again(training):
    run = trained(training)

    def failing(step, obs, rewards):
        if step == 4:
            raise ValueError("the environment returned NaN")

    with pytest.raises(ValueError, match="the environment"):
        run.roll_out(1, failing)
    run.algorithm.train_mode()  # as the runner's learn() does
    run.roll_out(2)
    assert run.algorithm.update()["skipped_updates"] == 0.0
