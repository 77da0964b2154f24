"""Auxiliary heads: gradients of a reference, unchanged results, refused options, checkpoints."""

import math
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO, Distillation
from support.auxiliary_reference import (
    ONE_SGD_STEP,
    gradient_of_update,
    reference_of_distillation,
    reference_of_ppo,
    roll_out_by_ppo,
    roll_out_distillation,
    vector,
)
from support.cases import HEADS
from support.helpers import make_distillation, make_ppo, parameters_of, roll_out, train
from support.inside import assert_same, networks_of_heads, through_a_file
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

T, N = 6, 5


def distillation(**options: Any) -> Any:
    return make_distillation(TbpttDistillation, T, N, **{"gradient_length": 3, **options})


def by_ppo(**options: Any) -> Any:
    recurrent = {} if options.get("actor") == "mlp" else {"gradient_length": 3}
    return make_ppo(TbpttPPO, T, N, **{"num_mini_batches": 2, **recurrent, **options})


def all_of(algorithm):
    """Return the parameters of the models, and of the heads, and the states of both optimisers."""
    return (
        parameters_of(algorithm),
        heads_of(algorithm),
        *map(_state, algorithm.transaction.optimizers),
    )


def heads_of(algorithm):
    return vector(*networks_of_heads(algorithm))


def _state(optimizer):
    entries = [value for entry in optimizer.state.values() for value in entry.values()]
    return torch.cat([torch.zeros(0), *(torch.as_tensor(entry).flatten() for entry in entries)])


MEMORY = {"buffer_rollouts": 2, "num_mini_batches": 2, "num_learning_epochs": 2}


@pytest.mark.parametrize("change", [{"coef": 0.0}, {"detach": True}], ids=str)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (distillation, {**MEMORY, "teacher_action_share": 0.4}),
        (distillation, {"student": "cnn-gru", "optimizer": "adamw", "num_micro_batches": 2}),
        (by_ppo, {"actor": "mlp", "critic": "mlp"}),
        (by_ppo, {"minibatch_unit": "window", "gradient_length": 2, "schedule": "fixed"}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_heads_with_coefficient_zero_change_no_bit(make, options, change):
    heads = {name: {**head, **change} for name, head in HEADS.items()}
    with_heads = make(auxiliary=heads, **options)
    random_state = torch.get_rng_state()
    without = make(**options)
    assert torch.equal(torch.get_rng_state(), random_state)
    got, want = train(with_heads, *range(3)), train(without, *range(3))
    assert {name: got[name] for name in want} == want
    assert set(got) - set(want) == {f"auxiliary/{name}" for name in heads}
    assert torch.equal(all_of(with_heads)[0], all_of(without)[0])
    assert torch.equal(_state(with_heads.optimizer), _state(without.optimizer))
    moves = not torch.equal(heads_of(with_heads), heads_of(make(auxiliary=heads, **options)))
    assert moves == (change == {"detach": True})


STATE = {"target": "state"}
BAD = [
    ({"x": {"target": "nothing"}}, "auxiliary.x.target is 'nothing'"),
    ({"x": {"target": "teacher:mlp.0"}}, "'teacher:mlp.0', .*: let the environment make a group"),
    ({"x": {**STATE, "hidden_dims": [0]}}, r"x.hidden_dims is \(0,\)"),
    ({"x": {**STATE, "loss": "mae"}}, "x.loss is 'mae'"),
    ({"x": {**STATE, "loss": "nowhere:loss"}}, "x.loss is 'nowhere:loss'"),
    ({"x": {**STATE, "hidden_dim": [1]}}, "'hidden_dim' of auxiliary.x: did you mean 'hidden_dims"),
    ({"x": {"coef": 0.5}}, "auxiliary.x is .* expected a dictionary with 'target'"),
    ({"a b": STATE}, "auxiliary has a head 'a b', expected a name"),
    (["x"], r"auxiliary is \['x'\], expected options by the name"),
]


@pytest.mark.parametrize(("heads", "message"), BAD)
def test_bad_heads_are_refused_by_name_before_any_rollout(heads, message):
    with pytest.raises(ValueError, match=message):
        distillation(auxiliary=heads)


def test_a_model_whose_latent_is_not_seen_is_refused():
    with pytest.raises(NotImplementedError, match="auxiliary is set, expected None with a OwnForw"):
        distillation(student="stepwise", auxiliary=HEADS)


def test_nan_in_the_target_of_a_head_without_weight_reaches_nothing():
    algorithm = distillation(auxiliary={"x": {"target": "state", "coef": 0.0}})
    train(algorithm, 0)
    roll_out(algorithm, 1)
    algorithm.storage.observations["state"][2, 1, 0] = math.nan
    assert algorithm.update()["skipped_updates"] == 0.0
    assert all(each.isfinite().all() for each in all_of(algorithm))


@pytest.mark.parametrize("make", [distillation, by_ppo])
def test_checkpoints_load_with_and_without_heads(make):
    with_heads, without, fresh = make(auxiliary=HEADS), make(), make(auxiliary=HEADS)
    train(with_heads, 0, 1)
    checkpoint = through_a_file(with_heads.save())
    without_heads = {key: value for key, value in checkpoint.items() if key != "rsl_tbptt"}
    with pytest.warns(UserWarning, match=r"auxiliary: \['velocity'.* are left out"):
        without.load(checkpoint, None, strict=True)
    stock: Any = make_ppo(PPO, T, N)
    if make is distillation:
        stock = make_distillation(Distillation, T, N, gradient_length=3)
    stock.load(checkpoint, None, strict=True)
    for loaded in (without, stock):
        assert torch.equal(parameters_of(loaded), parameters_of(with_heads))
    before = heads_of(fresh)
    with pytest.warns(UserWarning, match=r"auxiliary: \['velocity'.* begin anew, since only"):
        fresh.load(without_heads, None, strict=True)
    assert torch.equal(heads_of(fresh), before)


@pytest.mark.parametrize("make", [distillation, by_ppo])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "policy"}, r"auxiliary\.velocity does .* target is 'policy', expected 'state'"),
        ({"hidden_dims": [6]}, r"auxiliary\.velocity does .* hidden_dims is \[6\], expected \[5\]"),
    ],
)
def test_a_different_head_is_refused_and_nothing_changes(make, change, message):
    source = make(auxiliary=HEADS)
    train(source, 0)
    other = make(auxiliary={**HEADS, "velocity": {**HEADS["velocity"], **change}})
    train(other, 1)
    before = all_of(other)
    with pytest.raises(ValueError, match=message):
        other.load(source.save(), None, strict=True)
    assert_same(all_of(other), before)


def test_ppo_continues_with_the_heads_of_a_student():
    student, ppo = distillation(auxiliary=HEADS), by_ppo(auxiliary=HEADS)
    train(student, *range(2))
    ppo.load(through_a_file(student.save()), None, strict=True)
    assert torch.equal(heads_of(ppo), heads_of(student))
    assert "auxiliary/velocity" in train(ppo, 0)


@pytest.mark.parametrize(("option", "value"), [("columns", [4, 1]), ("delay", 2)])
def test_a_head_of_an_earlier_version_with_an_option_that_is_gone_is_refused(option, value):
    source, other = distillation(auxiliary=HEADS), distillation(auxiliary=HEADS)
    checkpoint = source.save()
    modules = checkpoint["rsl_tbptt"]["auxiliary"].pop("modules")
    heads = {}  # as earlier versions wrote them
    for name, state_dict in modules.items():
        meaning = {**state_dict.pop("_extra_state"), "columns": None, "delay": 0}
        heads[name] = {**meaning, "state_dict": state_dict}
    checkpoint["rsl_tbptt"]["auxiliary"]["heads"] = heads
    other.load(checkpoint, None, strict=True)
    heads["velocity"][option] = value
    message = (
        rf"auxiliary\.velocity does .* Its {option} is .*, expected .* as there: .* another name to"
    )
    with pytest.raises(ValueError, match=message):
        other.load(checkpoint, None, strict=True)


ONE_SGD_STEP_OF_PPO: dict[str, Any] = {
    **ONE_SGD_STEP,
    "auxiliary": HEADS,
    "schedule": "fixed",
    "value_loss_coef": 0.7,
}
FLOAT64 = pytest.mark.usefixtures("float64_here")


@FLOAT64
@pytest.mark.parametrize(
    "options",
    [
        {"student": "gru", "num_micro_batches": 3},
        {"student": "mlp"},
        # All of the past: old samples keep their own targets.
        {"student": "cnn-lstm", "num_micro_batches": 2, "buffer_rollouts": 2, "buffer_share": 99.0},
    ],
    ids=str,
)
def test_a_distillation_with_heads_equals_the_reference(options):
    algorithm = distillation(auxiliary=HEADS, update_length=T, **ONE_SGD_STEP, **options)
    pasts = []
    for seed in range(3):  # all but the first begin in the middle of episodes
        past = roll_out_distillation(algorithm, seed)
        pasts = [*(pasts if "buffer_rollouts" in options else []), past]
        expected = reference_of_distillation(algorithm, pasts)
        torch.testing.assert_close(gradient_of_update(algorithm), expected, **EXACT_FLOAT64)


@FLOAT64
@pytest.mark.parametrize(
    "options",
    [
        {"actor": "cnn-lstm", "critic": "cnn-gru", "num_micro_batches": 2},
        {"actor": "mlp", "critic": "mlp"},
        {"minibatch_unit": "window", "gradient_length": T},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:minibatch_unit is 'window'")
def test_ppo_with_heads_equals_the_reference(options):
    rate = 0.1  # a step of the whole gradient can make a standard deviation negative
    algorithm = by_ppo(**{**ONE_SGD_STEP_OF_PPO, "learning_rate": rate, **options})
    for seed in range(2):
        past = roll_out_by_ppo(algorithm, seed)
        length = options.get("gradient_length", 3)
        expected = rate * reference_of_ppo(algorithm, past, length)
        torch.testing.assert_close(gradient_of_update(algorithm), expected, **EXACT_FLOAT64)
