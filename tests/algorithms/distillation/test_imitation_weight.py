"""Weights of robot-steps in distillation: the exact weighted mean, for any micro-batches."""

import math
from typing import Any

import pytest
import support.helpers as helpers
import torch
from support.helpers import (
    SLICES,
    hold_frames,
    make_distillation,
    make_model,
    parameters_of,
    roll_out,
    train,
    weigh,
)
from support.tbptt_reference import WeightedSequences, weighted_gradients
from support.tolerances import EXACT_FLOAT64
from torch.distributions import Bernoulli

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.core import hidden_state

T, N = 7, 5
FIXED = {"optimizer": "sgd", "learning_rate": 1e-30, "max_grad_norm": None}
"""The parameters do not change, so that the gradient of each optimiser step can be compared."""

GRADIENT: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9}
"""The documented tolerance in float64."""


def squared(actions, labels):
    return (actions - labels).square().mean(-1)


def joint_and_gripper(actions, labels):
    """Return the loss of ``SLICES`` in plain code."""
    joint = (actions[..., 0] - labels[..., 0]).square()
    gripper = -Bernoulli(logits=actions[..., 1]).log_prob((labels[..., 1] > 0).to(actions.dtype))
    return joint + 0.5 * gripper


def make(**options):
    """Build an algorithm that keeps the gradient of each optimiser step in ``seen``."""
    options = {"gradient_length": 3, "imitation_weight": weigh, **options}
    algorithm = make_distillation(TbpttDistillation, T, N, **options)
    algorithm.seen = []

    def keep(*_):
        parameters = algorithm.student.parameters()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        algorithm.seen.append(torch.cat([grad.flatten() for grad in grads]))

    algorithm.optimizer.register_step_pre_hook(keep)
    return algorithm


def recorded(algorithm):
    """Return the stored rollout as the reference takes it."""
    storage, weight = algorithm.storage, algorithm.options.imitation_weight
    return WeightedSequences(
        obs=storage.observations.clone(),
        labels=storage.privileged_actions.clone(),
        dones=storage.dones.squeeze(-1).bool(),
        weights=torch.ones(T, N)
        if weight is None
        else storage.observations["state"][..., 0].relu(),
        state=hidden_state.clone(algorithm.experience.start_state),
    )


def assert_gradients(seen, expected):
    for found, want in zip(seen, expected, strict=True):
        torch.testing.assert_close(found, want, **GRADIENT)


@pytest.mark.usefixtures("float64_here")
@pytest.mark.parametrize(
    ("weight", "loss_type", "loss"),
    [(weigh, "mse", squared), (None, "mse", squared), (weigh, SLICES, joint_and_gripper)],
    ids=["weights", "plain", "slices"],
)
@pytest.mark.parametrize(
    ("student", "k1", "k2", "num_micro_batches", "with_buffer"),
    [
        ("lstm", 3, 3, 3, False),
        ("lstm", 2, 4, 1, True),
        ("gru", 6, 3, 3, True),
        ("mlp", 3, 3, 1, True),
        ("cnn-lstm", 7, 7, 1, False),
        ("cnn-lstm", 2, 4, 3, True),
    ],
)
def test_gradients_are_those_of_the_weighted_mean_over_fresh_and_old_samples(
    weight, loss_type, loss, student, k1, k2, num_micro_batches, with_buffer
):
    options = {"buffer_rollouts": 4, "buffer_share": 100.0} if with_buffer else {}
    lengths = {"gradient_length": k2, "update_length": k1, "num_micro_batches": num_micro_batches}
    algorithm = make(
        student=student, imitation_weight=weight, loss_type=loss_type, **lengths, **options, **FIXED
    )
    reference = make_model("student", student, N, seed=1)
    sequences = []
    for seed in range(3):
        on_step = hold_frames(1 + seed) if student == "cnn-lstm" else None
        roll_out(algorithm, seed, on_step=on_step)
        sequences = [*(sequences if with_buffer else []), recorded(algorithm)]
        reference.load_state_dict(algorithm.student.state_dict())
        algorithm.seen.clear()
        metrics = algorithm.update()
        if loss is joint_and_gripper:
            both = metrics["behavior/joint"] + 0.5 * metrics["behavior/gripper"]
            assert metrics["behavior"] == pytest.approx(both, rel=1e-5)
        assert_gradients(algorithm.seen, weighted_gradients(reference, sequences, k1, k2, loss))
        of_rollout = sequences[-1]
        with torch.no_grad():
            reference.reset(hidden_state=of_rollout.state)
            losses = []
            for t in range(T):
                losses.append(loss(reference(of_rollout.obs[t]), of_rollout.labels[t]))
                state = hidden_state.clear(reference.get_hidden_state(), of_rollout.dones[t])
                reference.reset(hidden_state=state)
        weighted = of_rollout.weights * torch.stack(losses)
        assert metrics["behavior"] == pytest.approx(
            (weighted.sum() / of_rollout.weights.sum()).item(), rel=1e-8
        )
        mean_weight = of_rollout.weights.mean().item()
        assert metrics.get("imitation_weight", 1.0) == pytest.approx(mean_weight)


def test_no_weight_gives_no_gradient():
    algorithm = make(imitation_weight=lambda transitions: torch.zeros(T, N))
    metrics = train(algorithm, 0)
    assert (metrics["behavior"], metrics["imitation_weight"]) == (0.0, 0.0)
    assert not torch.stack(algorithm.seen).any()


@pytest.mark.usefixtures("float64_here")
def test_steps_without_loss_do_not_count():
    algorithm = make(tail="drop", **FIXED)
    roll_out(algorithm, 0)
    sequences = recorded(algorithm)
    algorithm.storage.observations["state"][6, 2, 0] = torch.nan  # its labels are stored already
    algorithm.storage.observations["state"][6, 1, 0] = 1e6
    reference = make_model("student", "lstm", N, seed=1)
    metrics = algorithm.update()
    expected = weighted_gradients(reference, [sequences], 3, 3, squared, num_loss_steps=6)
    assert_gradients(algorithm.seen, expected)
    assert metrics["imitation_weight"] == pytest.approx(sequences.weights[:6].mean().item())


@pytest.mark.usefixtures("float64_here")
@pytest.mark.parametrize(("loss_reduction", "constant"), [("mean", 0.25), ("sum", 3.0)])
def test_a_constant_weight_changes_nothing(loss_reduction, constant):
    shared = {"num_mini_batches": 2, "buffer_rollouts": 2, "loss_reduction": loss_reduction}
    results = []
    for weight in (None, lambda transitions: torch.full((T, N), constant)):
        algorithm = make(imitation_weight=weight, **shared)
        metrics = train(algorithm, 0, 1, 2)
        results.append((parameters_of(algorithm), metrics["behavior"]))
    assert metrics["imitation_weight"] == constant
    torch.testing.assert_close(*results, **EXACT_FLOAT64)


@pytest.mark.parametrize("before", [None, weigh])
@pytest.mark.parametrize("after", [None, weigh])
def test_saved_buffers_are_loaded_with_and_without_weights(before, after):
    source, target = (
        make(imitation_weight=weight, buffer_rollouts=2, save_buffer=True)
        for weight in (before, after)
    )
    train(source, 0)
    saved = source.save()
    target.load(saved, None, strict=True)
    roll_out(target, 1)
    target.experience.take()
    buffer = target.experience.buffer
    assert buffer.num_kept == N
    if after is None:
        assert buffer.rollout.weights is None
        return
    kept = saved["rsl_tbptt"]["buffer"].get("weights", torch.ones(T, N))
    assert torch.equal(buffer.rollout.weights[:, :N], kept)
    assert (kept == 0).any() == (before is not None)


@pytest.fixture
def success(monkeypatch):
    """Add a group "success" to the observations, 1 where the first state is positive."""
    make_obs = helpers.make_obs

    def with_success(*args, **kwargs):
        obs = make_obs(*args, **kwargs)
        obs["success"] = (obs["state"][:, :1] > 0).float()
        return obs

    monkeypatch.setattr(helpers, "make_obs", with_success)


@pytest.mark.usefixtures("success")
def test_a_group_gives_the_same_weights_as_a_function_of_it():
    results = []
    for weight in ("success", lambda transitions: transitions.obs["success"].squeeze(-1)):
        algorithm = make(imitation_weight=weight)
        metrics = train(algorithm, 0)
        assert 0 < metrics["imitation_weight"] < 1
        results.append(parameters_of(algorithm))
    assert torch.equal(*results)


def test_an_unknown_group_is_refused_before_any_rollout():
    message = r"imitation_weight is 'sucess', expected one of \['policy', 'state'\]"
    with pytest.raises(ValueError, match=message):
        make(imitation_weight="sucess")


def writes_labels(transitions):
    transitions.labels.add_(1.0)
    return torch.ones(T, N)


def writes_obs(transitions):
    transitions.obs["policy"].add_(1.0)
    return torch.ones(T, N)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (lambda transitions: transitions.obs["nothing"], "it fails .*nothing"),
        (lambda transitions: transitions.rewards[0], r"shape \(7, 5\); .* have shape \(5,\)"),
        (lambda transitions: 1.0, r"the weights are <class 'float'>"),
        (lambda transitions: torch.ones(T, N).numpy(), "weights are float32"),
        (lambda transitions: torch.ones(T, N) + 0j, "the weights are torch.complex64"),
        ("state", r"imitation_weight is 'state', .* have shape \(7, 5, 7\)"),
        (writes_labels, "imitation_weight, .*writes_labels.*, writes into the 'labels' that it is"),
        (writes_obs, "writes into the 'policy' that it is given, expected a new tensor"),
    ],
)
def test_a_weight_is_tried_out_before_the_first_step(weight, message):
    algorithm = make(imitation_weight=weight)
    with pytest.raises(ValueError, match=message):
        algorithm.act(helpers.make_obs(N))


def test_the_steps_of_an_episode_are_counted_over_rollouts():
    counted = []

    def count(transitions):
        counted.append(transitions.episode_steps.clone())
        return torch.ones(T, N)

    algorithm = make(imitation_weight=count)
    steps = torch.zeros(N, dtype=torch.int64)
    for seed in range(4):
        roll_out(algorithm, seed, done_rate=0.1)
        dones, expected = algorithm.storage.dones.squeeze(-1).bool().clone(), []
        for t in range(T):
            expected.append(steps)
            steps = torch.where(dones[t], 0, steps + 1)
        if seed == 1:  # broken off, but the simulated steps count
            algorithm.train_mode()
        else:
            algorithm.update()
            assert torch.equal(counted[-1], torch.stack(expected))
    assert steps.max() > T


def test_a_function_gets_the_executed_actions():
    seen = []

    def look(transitions):
        seen.append((transitions.actions == transitions.labels).all(-1))
        return torch.ones(T, N)

    train(make(imitation_weight=look, teacher_action_share=0.4), 0)
    assert seen[-1].all(0).sum() == 2  # the environments in which the teacher acts
    assert seen[-1].sum() == 2 * T


LEFT_OUT = torch.zeros(T, N, dtype=torch.bool)
LEFT_OUT[[1, 2, 4], [0, 3, 3]] = True
HEAD = {"auxiliary": {"state": {"target": "state", "coef": 0.5}}}


def leave_out(transitions):
    """Give a few steps weight 0, independently of their labels."""
    weights = 0.5 + transitions.obs["policy"][..., 0].abs()
    return torch.where(LEFT_OUT, 0.0, weights)


def spoil(value, where=LEFT_OUT):
    """Return a function that sets some of the teacher's observations, and so labels, to a value."""

    def on_step(step, obs):
        obs["state"][where[step]] = value

    return on_step


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (math.nan, {"student": "mlp"}),
        (math.inf, {}),
        (math.nan, {"loss_type": "kl", **HEAD}),
        (
            math.nan,
            {"loss_type": [{"loss": "nll", "actions": [0, 1]}, {"loss": "bce", "actions": [1, 2]}]},
        ),
        (1e30, {"buffer_rollouts": 3, "num_micro_batches": 2, "batch_teacher_labels": True}),
    ],
)
def test_a_label_with_weight_zero_has_no_effect_at_any_value(value, options):
    results = []
    for given in (0.3, value):
        algorithm = make(imitation_weight=leave_out, **options)
        logged = [train(algorithm, seed, on_step=spoil(given)) for seed in range(3)]
        results.append((parameters_of(algorithm), logged))
    (plain, expected), (spoiled_ones, found) = results
    assert torch.equal(spoiled_ones, plain)
    assert found == expected
    assert {"behavior", "imitation_weight"} <= found[-1].keys()


@pytest.mark.parametrize("loss_type", ["mse", "bce"])
def test_only_a_nan_label_with_weight_is_named(loss_type):
    algorithm = make(imitation_weight=leave_out, loss_type=loss_type)
    bad = LEFT_OUT.clone()
    bad[3, 2] = True
    roll_out(algorithm, 0, on_step=spoil(math.nan, bad))
    message = r"NaN or inf in observation group 'state' of environments \[2\], first at step 3 "
    with pytest.warns(UserWarning, match=message):
        assert algorithm.update() == {"skipped_updates": 1.0}
    roll_out(algorithm, 1)
    algorithm.storage.privileged_actions[bad] = math.nan
    with pytest.warns(UserWarning, match=r"in teacher actions of environments \[2\], first at"):
        assert algorithm.update() == {"skipped_updates": 2.0}


def test_a_buffer_with_nan_without_weight_serves_a_run_without_weights():
    options = {"buffer_rollouts": 2, "save_buffer": True}
    algorithm = make(imitation_weight=leave_out, **options)
    train(algorithm, 0, on_step=spoil(math.nan))
    resumed = make(imitation_weight=None, **options)
    resumed.load(algorithm.save(), None, strict=True)
    assert train(resumed, 1, 2)["skipped_updates"] == 0.0


@pytest.mark.parametrize(("value", "text"), [(-0.5, r"-0\.5"), (math.nan, "nan")])
def test_weights_that_are_not_valid_are_named_and_skipped(value, text):
    weights = torch.ones(T, N)
    algorithm = make(imitation_weight=lambda transitions: weights.clone(), buffer_rollouts=2)
    train(algorithm, 0)
    before = parameters_of(algorithm)
    weights[2, [1, 3]] = value
    message = (
        rf"An update was refused: imitation_weight is {text}, expected a finite number of at least"
        r" 0, in environments \[1, 3\], first at step 2 of the rollout\. It is skipped"
    )
    with pytest.warns(UserWarning, match=message):
        assert train(algorithm, 1) == {"skipped_updates": 1.0}
    assert torch.equal(parameters_of(algorithm), before)
    assert algorithm.experience.buffer.num_kept == N
    weights.fill_(1.0)
    assert "behavior" in train(algorithm, 2)
