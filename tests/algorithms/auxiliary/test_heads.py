"""Auxiliary heads with everything else: unchanged results, refused options, checkpoints."""

import math
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO, Distillation
from support.auxiliary_reference import HEADS, vector
from support.helpers import (
    make_distillation,
    make_ppo,
    parameters_of,
    roll_out,
    train,
)
from support.imitation import forget
from support.inside import assert_same, networks_of_heads, through_a_file

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

T, N = 6, 5
LATENT = {"latent": {"target": "teacher:mlp.0"}}


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
    if make is distillation:
        heads |= {"latent": {**LATENT["latent"], **change}}
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


@pytest.mark.parametrize("poison", [1e6, math.nan])
def test_unused_targets_do_not_matter(poison):
    heads = {"later": {"target": "state", "delay": 2}}
    results = []
    for value in (0.0, poison):
        algorithm = distillation(auxiliary=heads)
        roll_out(algorithm, 0, done_rate=0.0)
        storage = algorithm.storage
        storage.dones[3, 1] = 1
        storage.observations["state"][:2] = value  # before the first target
        storage.observations["state"][4:, 1] = value  # in another episode than all steps before it
        assert len(algorithm.update()) > 1
        results.append(all_of(algorithm))
    assert_same(*results)


def reduced(predictions, targets):
    return (predictions - targets).square().mean()


STATE = {"target": "state"}
BAD = [
    ({"x": {"target": "nothing"}}, "auxiliary.x.target is 'nothing'"),
    ({"x": {**STATE, "columns": [7]}}, r"x.columns is \[7\], expected at most 6"),
    ({"x": {**STATE, "columns": [1, 1]}}, r"columns is \(1, 1\)"),
    ({"x": {**STATE, "delay": T}}, f"x.delay is {T}"),
    ({"x": {**STATE, "hidden_dims": [0]}}, r"x.hidden_dims is \(0,\)"),
    ({"x": {**STATE, "loss": "mae"}}, "x.loss is 'mae'"),
    ({"x": {**STATE, "loss": "nowhere:loss"}}, "x.loss is 'nowhere:loss'"),
    ({"x": {**STATE, "loss": reduced}}, "x.loss is <function.*one loss per column"),
    ({"x": {**STATE, "colums": [1]}}, "Unknown option 'colums' of auxiliary.x: did you mean"),
    ({"x": {"columns": [1]}}, "auxiliary.x is .* expected a dictionary with 'target'"),
    ({"a b": STATE}, "auxiliary has a head 'a b', expected a name"),
    (["x"], r"auxiliary is \['x'\], expected options by the name"),
]


@pytest.mark.parametrize(("heads", "message"), BAD)
def test_bad_heads_are_refused_by_name_before_any_rollout(heads, message):
    with pytest.raises(ValueError, match=message):
        distillation(auxiliary=heads)


def test_a_layer_that_the_teacher_lacks_is_refused():
    with pytest.raises(ValueError, match=r"'teacher:mlp.9', expected a layer.*'mlp.0', 'mlp.1'"):
        distillation(auxiliary={"x": {"target": "teacher:mlp.9"}})
    with pytest.raises(ValueError, match=r"'teacher:mlp.0'.*: no teacher's layers are recorded"):
        by_ppo(auxiliary=LATENT)
    images = {"teacher": "cnn", "batch_teacher_labels": True}
    with pytest.raises(ValueError, match="none of a CNN with batch_teacher_labels"):
        distillation(auxiliary={"x": {"target": "teacher:cnns.camera"}}, **images)


def test_a_model_whose_latent_is_not_seen_is_refused():
    with pytest.raises(NotImplementedError, match="auxiliary is set, expected None with a OwnForw"):
        distillation(student="stepwise", auxiliary=HEADS)


def test_layers_of_a_recurrent_teacher_are_recorded():
    algorithm = distillation(teacher="lstm", auxiliary={"latent": {"target": "teacher:rnn"}})
    roll_out(algorithm, 0)
    algorithm._labels.complete()
    recorded = algorithm._labels.layers.outputs["rnn"]
    model, storage = algorithm.teacher, algorithm.storage
    model.reset()
    for t in range(T):
        torch.testing.assert_close(recorded[t], model.get_latent(storage.observations[t]))
        model.reset(storage.dones[t].squeeze(-1))


@pytest.mark.parametrize(
    ("make", "coef"), [(distillation, 1.0), (by_ppo, 1.0), (distillation, 0.0)]
)
def test_nan_in_a_target_is_named_and_undone_unless_its_head_has_no_weight(make, coef):
    algorithm = make(auxiliary={"x": {"target": "state", "columns": [0], "coef": coef}})
    train(algorithm, 0)
    before = all_of(algorithm)
    roll_out(algorithm, 1)
    algorithm.storage.observations["state"][2, 1, 0] = math.nan
    if coef == 0.0:
        assert algorithm.update()["skipped_updates"] == 0.0
        assert all(each.isfinite().all() for each in all_of(algorithm))
        return
    message = r"group 'state' of environments \[1\], first at step 2"
    with pytest.warns(UserWarning, match=message):
        assert algorithm.update() == {"skipped_updates": 1.0}
    assert_same(all_of(algorithm), before)


def test_nan_in_a_layer_of_the_teacher_is_named():
    algorithm = distillation(auxiliary=LATENT)
    roll_out(algorithm, 0)
    algorithm._labels.layers.outputs["mlp.0"][3, 2] = math.nan
    with pytest.warns(UserWarning, match=r"the teacher's layer 'mlp.0' of environments \[2\]"):
        algorithm.update()


@pytest.mark.parametrize("make", [distillation, by_ppo])
def test_a_resumed_run_continues_with_its_heads(make):
    first, second = make(auxiliary=HEADS), make(auxiliary=HEADS)
    train(first, 0, 1)
    train(second, 5)
    second.load(through_a_file(first.save()), None, strict=True)
    for algorithm in (first, second):
        forget(algorithm)
        train(algorithm, 2, 3)
    assert_same(all_of(second), all_of(first))


@pytest.mark.parametrize("make", [distillation, by_ppo])
def test_checkpoints_load_with_and_without_heads(make):
    with_heads, without, fresh = make(auxiliary=HEADS), make(), make(auxiliary=HEADS)
    train(with_heads, 0, 1)
    checkpoint = through_a_file(with_heads.save())
    without_heads = {key: value for key, value in checkpoint.items() if key != "rsl_tbptt"}
    with pytest.warns(UserWarning, match=r"heads: \['velocity'.* of the checkpoint are not in"):
        without.load(checkpoint, None, strict=True)
    stock: Any = make_ppo(PPO, T, N)
    if make is distillation:
        stock = make_distillation(Distillation, T, N, gradient_length=3)
    stock.load(checkpoint, None, strict=True)
    for loaded in (without, stock):
        assert torch.equal(parameters_of(loaded), parameters_of(with_heads))
    before = heads_of(fresh)
    with pytest.warns(
        UserWarning, match=r"heads: \['velocity'.* are not in the checkpoint and begin anew\.$"
    ):
        fresh.load(without_heads, None, strict=True)
    assert torch.equal(heads_of(fresh), before)


@pytest.mark.parametrize("make", [distillation, by_ppo])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": [1, 4]}, r"velocity.columns is \[1, 4\], expected \[4, 1\] as in the check"),
        ({"hidden_dims": [6]}, r"velocity.hidden_dims is \[6\], expected \[5\]"),
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
