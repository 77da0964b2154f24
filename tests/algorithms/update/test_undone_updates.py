"""An update with NaN, inf or an error is undone completely; the message names the source.

Updates with NaN or inf are skipped and counted. Too many in a row end the training.
"""

import contextlib
import warnings
from functools import partial, reduce
from typing import Any

import pytest
import torch
from support.cases import CASES, EXPECTED_WARNINGS
from support.helpers import make_distillation, make_obs, make_ppo, rnd_cfg, roll_out, train
from support.inside import assert_same, everything, hidden_states, saved
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.find_nan import Inputs, find_source
from rsl_tbptt.algorithms.undo import Rollback
from rsl_tbptt.core.distributed import Ranks

pytestmark = EXPECTED_WARNINGS

NAN, INF = float("nan"), float("inf")
T, N = 6, 4


def distilling(**options):
    return make_distillation(TbpttDistillation, T, N, **{"gradient_length": 2, **options})


def reinforcing(models="lstm", num_envs=N, **options):
    return make_ppo(TbpttPPO, T, num_envs, models, models, **options)


@pytest.fixture(params=["distillation", "ppo"])
def trained(request):
    """Return a function that builds an algorithm with a normaliser and updates it once."""

    def trained(**options):
        normalized = {"obs_normalization": True}
        if request.param == "distillation":
            algorithm = distilling(student_kwargs=normalized, **options)
        else:
            rnd = rnd_cfg(state_normalization=True)
            algorithm = reinforcing(actor_kwargs=normalized, rnd_cfg=rnd, **options)
        train(algorithm, 0)
        return algorithm

    return trained


def bad(value, env=2, step=3, group="policy") -> dict[str, Any]:
    def poison(at, obs, *_):
        if at == step:
            obs[group][env, 0] = value

    return {"on_step": poison}


@pytest.mark.parametrize("value", [NAN, INF, 1e25])
def test_each_source_is_named_once_and_training_continues_as_if_nothing_had_happened(
    trained, value
):
    algorithm = trained()
    before = everything(algorithm)
    for seed, env in ((1, 2), (2, 1)):
        roll_out(algorithm, seed, **bad(value, env))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert algorithm.update() == {"skipped_updates": seed}
        assert_same(everything(algorithm), before)
        said = [
            "'policy' of environments [2], first at step 3" in str(each.message) for each in seen
        ]
        assert said == ([True] if seed == 1 else [])
    roll_out(algorithm, 3, **bad(NAN, group="state"))
    with pytest.warns(UserWarning, match="observation group 'state'.*skipp"):
        assert algorithm.update() == {"skipped_updates": 3.0}
    metrics = train(algorithm, 4)
    assert metrics["skipped_updates"] == 3.0
    assert len(metrics) > 4


@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
def test_too_many_in_a_row_end_the_training_and_change_nothing(trained):
    algorithm = trained(max_skipped_updates=2)
    before = everything(algorithm)
    for round_ in range(2):  # training can be started again
        roll_out(algorithm, 1, **bad(NAN))
        assert algorithm.update() == {"skipped_updates": 2.0 * round_ + 1}
        roll_out(algorithm, 1, **bad(NAN))
        with pytest.raises(ValueError, match=r"2 updates in a row met .* max_skipped_updates"):
            algorithm.update()
        assert algorithm.storage.step == 0
    assert_same(everything(algorithm), before)
    roll_out(algorithm, 1, **bad(NAN))
    algorithm.update()
    train(algorithm, 2)  # the count starts again
    roll_out(algorithm, 1, **bad(NAN))
    assert algorithm.update() == {"skipped_updates": 6.0}


def test_an_update_takes_whole_rollouts_only(trained):
    algorithm = trained()

    def failing(step, *_):
        if step == 4:
            raise ValueError("the environment returned NaN")

    with pytest.raises(ValueError, match="the environment"):
        roll_out(algorithm, 1, on_step=failing)
    before = everything(algorithm)
    roll_out(algorithm, 2)
    with pytest.warns(UserWarning, match="The rollout has 4 of 6 steps"):
        assert algorithm.update() == {"skipped_updates": 1.0}
    assert_same(everything(algorithm), before)
    assert train(algorithm, 3)["skipped_updates"] == 1.0


def test_training_modes_in_the_midst_of_a_rollout_change_nothing(trained):
    plain, looked_at = trained(), trained()

    def look(step, *_):
        if step == 3:
            looked_at.eval_mode()
            looked_at.train_mode()

    for algorithm, on_step in ((plain, None), (looked_at, look)):
        roll_out(algorithm, 1, on_step=on_step)
        torch.manual_seed(0)
        algorithm.update()
    assert_same(everything(looked_at), everything(plain))


MOMENTS = ["begin_update", "conclude", "transaction._watch", "extensions[-1].advance"]
"""From the first to the last change of an update."""


@contextlib.contextmanager
def interrupted_after(algorithm, moment):
    """Let Ctrl+C interrupt an update at a moment."""
    *path, method = moment.split(".")
    owner = reduce(
        lambda of, name: of.extensions[-1] if "[" in name else getattr(of, name), path, algorithm
    )
    original = getattr(owner, method)

    def interrupted(*args, **options):
        original(*args, **options)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, interrupted)
        yield


MORE_STEPS = {"ppo-models-stepwise": {"num_mini_batches": 2, "num_learning_epochs": 2}}
"""Options with which a step follows the one that meets NaN."""


def spoil(step, obs, *_):
    """Make all observations NaN at a step."""
    if step == 3:
        for group in {*obs.keys()} - {"skill"}:
            obs[group].fill_(NAN)


@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
@pytest.mark.parametrize("name", CASES)
def test_an_undone_update_leaves_no_trace(name):
    case = CASES[name]
    algorithm = case.build(**MORE_STEPS.get(name, {}))
    case.fill(algorithm, 0)
    algorithm.update()
    before = saved(algorithm)
    for seed, moment in enumerate(MOMENTS, start=1):
        case.fill(algorithm, seed)
        states = hidden_states(algorithm)
        with interrupted_after(algorithm, moment), pytest.raises(KeyboardInterrupt):
            algorithm.update()
        assert_same(saved(algorithm), before)
        assert_same(hidden_states(algorithm), states)
    case.fill(algorithm, 5, on_step=spoil)
    assert algorithm.update() == {"skipped_updates": 1.0}
    assert_same(saved(algorithm), before)
    case.fill(algorithm, 6)
    assert len(algorithm.update()) > 4


@pytest.mark.parametrize("name", ["distillation-buffer-heads-average", "ppo-fine-tuned"])
def test_after_the_end_of_an_update_an_error_undoes_nothing(name, monkeypatch):
    case, found = CASES[name], []
    for raises in (False, True):
        algorithm = case.build()
        case.fill(algorithm, 2)

        def interrupted():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(algorithm, "_conclude", interrupted if raises else lambda: {})
            with pytest.raises(KeyboardInterrupt) if raises else contextlib.nullcontext():
                algorithm.update()
        found.append([saved(algorithm), hidden_states(algorithm)])
        assert algorithm.storage.step == 0
    assert_same(*found)


def test_a_rate_that_is_a_tensor_is_restored_in_place():
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    rollback = Rollback([], [optimizer], lambda: [])
    rollback.keep()
    rate.mul_(2)
    rollback.restore()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.5


def bad_observation_after_the_last_step(algorithm):
    roll_out(algorithm, 0, done_rate=0.0)
    last_obs = make_obs(N)
    last_obs["state"][2, 1] = NAN
    with torch.inference_mode():
        algorithm.compute_returns(last_obs)


def huge_reward(algorithm):
    def poison(step, obs, rewards):
        if step == 1:
            rewards[3] = 1e30

    roll_out(algorithm, 0, done_rate=1.0, on_step=poison)


def missing_label(algorithm):
    """Let a label be NaN after two good steps, and a group that no model reads."""
    roll_out(algorithm, 0)
    algorithm.storage.observations["unread"] = torch.full((T, N, 1), NAN)
    algorithm.storage.privileged_actions[5, 3, 1] = NAN


def exploding_gradients(algorithm, envs=(0, 3)):
    roll_out(algorithm, 0)
    algorithm.storage.actions_log_prob[2, envs] = -1e4  # a probability ratio of inf
    algorithm.storage.advantages[2, envs] = -1.0  # which is not clipped


def diverging(**options):
    return distilling(optimizer="sgd", max_grad_norm=None, learning_rate=1e30, **options)


HUGE = r"rewards of environments \[3\], first at step 1 .* \(1e\+30, too large to be squared"
EXPLODED = r"the gradients of environments \[0, 3\] \(what was"
MANY = r"the gradients of environments \[0, 1, 2, 3, 4, 5, 6, 7\] and 56 more"


@pytest.mark.parametrize(
    ("make", "roll_out_badly", "message"),
    [
        (diverging, partial(roll_out, seed=1), "it diverged, so lower learning_rate"),
        (distilling, missing_label, r"teacher actions of environments \[3\], first at step 5"),
        (reinforcing, bad_observation_after_the_last_step, r"returns of environments \[2\]"),
        (reinforcing, huge_reward, HUGE),
        (reinforcing, exploding_gradients, EXPLODED),
        (partial(reinforcing, "mlp"), exploding_gradients, EXPLODED),
        (partial(reinforcing, num_envs=64), partial(exploding_gradients, envs=slice(None)), MANY),
    ],
)
def test_a_first_update_is_undone_and_its_source_named(make, roll_out_badly, message):
    algorithm = make(non_finite="raise")
    roll_out_badly(algorithm)
    before = everything(algorithm)
    with pytest.raises(ValueError, match=message + r".*learn\(\)"):
        algorithm.update()
    assert_same(everything(algorithm), before)


@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
def test_a_constant_that_is_not_finite_skips_nothing_and_is_restored(trained, monkeypatch):
    """Masks of attention hold -inf."""
    algorithm = trained()
    mask, conclude = torch.tensor([0.0, -INF]), algorithm.conclude
    algorithm.transaction.modules[0].register_buffer("mask", mask)
    assert train(algorithm, 1)["skipped_updates"] == 0.0
    breaking = lambda *args, **fixed: (mask.fill_(NAN), conclude(*args, **fixed))[1]  # noqa: E731
    monkeypatch.setattr(algorithm, "conclude", breaking)
    assert train(algorithm, 2) == {"skipped_updates": 1.0}
    assert mask.tolist() == [0.0, -INF]


@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
@pytest.mark.parametrize("name", ["distillation-chunks", "ppo-chunks"])
def test_the_search_takes_no_more_memory_than_an_update(name, monkeypatch):
    algorithm = CASES[name].build(num_envs=16)
    if "ppo" in name:
        model, objective = algorithm.actor, algorithm.actor_objective
    else:
        model, objective = algorithm.student, algorithm.objective
    sizes, accumulate = [], objective.accumulate

    def watched(group, rows, *args):
        sizes.append(len(rows) / args[-1])
        return accumulate(group, rows, *args)

    monkeypatch.setattr(objective, "accumulate", watched)
    train(algorithm, 0, 1)
    largest = max(sizes)
    model.mlp[0].weight.register_hook(lambda gradient: gradient * NAN)
    sizes.clear()
    assert train(algorithm, 2) == {"skipped_updates": 1.0}
    assert max(sizes) <= largest


@pytest.mark.parametrize("is_input", [True, False])
def test_a_group_without_columns_is_searched_too(is_input):
    values = torch.zeros(T, N)
    values[3, 2] = NAN
    group = values if is_input else torch.zeros(T, N)
    obs = TensorDict({"one": group}, batch_size=[T, N])
    source = find_source(
        obs,
        Inputs(["one"], {}),
        lambda: (obs["one"] * values).sum().backward(),
        Ranks(together=False),
    )
    kind = "observation group 'one'" if is_input else "the gradients"
    assert str(source).startswith(f"met NaN or inf in {kind} of environments [2]")
