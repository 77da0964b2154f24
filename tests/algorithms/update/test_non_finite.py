"""A NaN stops the update before it costs anything, and says where it came from."""

import copy

import pytest
import torch
from support.helpers import make_distillation, parameters_of, roll_out

from rsl_tbptt.algorithms import TbpttDistillation


def snapshot(algorithm):
    return parameters_of(algorithm), copy.deepcopy(algorithm.optimizer.state_dict())


def assert_unchanged(algorithm, before):
    parameters, optimizer_state = before
    assert torch.equal(parameters_of(algorithm), parameters)
    state = algorithm.optimizer.state_dict()
    assert state["param_groups"] == optimizer_state["param_groups"]
    assert state["state"].keys() == optimizer_state["state"].keys()
    for index, entries in optimizer_state["state"].items():
        assert all(torch.equal(state["state"][index][name], v) for name, v in entries.items())


def trained(**options):
    algorithm = make_distillation(
        TbpttDistillation, 6, 4, gradient_length=2, non_finite="raise", **options
    )
    roll_out(algorithm, 0)
    algorithm.update()
    return algorithm


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("student", ["mlp", "lstm", "gru", "cnn-lstm"])
def test_bad_observations_name_group_environments_and_step(student, value):
    algorithm = trained(student=student)
    before = snapshot(algorithm)

    def poison(step, obs):
        if step == 3:
            obs["policy"][[1, 2], 0] = value

    roll_out(algorithm, 1, on_step=poison)
    message = r"observation group 'policy' of environments \[1, 2\], first at step 3 .*learn\(\)"
    with pytest.raises(ValueError, match=message):
        algorithm.update()
    assert_unchanged(algorithm, before)


def test_bad_teacher_actions_are_told_from_observations():
    algorithm = trained()
    roll_out(algorithm, 1)
    algorithm.storage.privileged_actions[5, 3, 1] = float("nan")
    before = snapshot(algorithm)
    with pytest.raises(ValueError, match=r"teacher actions of environments \[3\], first at step 5"):
        algorithm.update()
    assert_unchanged(algorithm, before)


def test_divergence_within_the_update_is_named():
    algorithm = trained(optimizer="sgd", max_grad_norm=None)
    algorithm.optimizer.param_groups[0]["lr"] = 1e30
    roll_out(algorithm, 1)
    before = snapshot(algorithm)
    with pytest.raises(ValueError, match="it diverged, so lower learning_rate"):
        algorithm.update()
    assert_unchanged(algorithm, before)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
@pytest.mark.parametrize("updates_before", [0, 1, 3])
def test_every_optimiser_goes_back_to_the_last_bit(optimizer, updates_before):
    algorithm = make_distillation(
        TbpttDistillation,
        6,
        4,
        gradient_length=2,
        optimizer=optimizer,
        num_learning_epochs=2,
        non_finite="raise",
    )
    for seed in range(updates_before):
        roll_out(algorithm, seed)
        algorithm.update()
    for seed in (7, 8):  # and again, into the same buffers
        roll_out(algorithm, seed)
        algorithm.storage.privileged_actions[5, 3, 1] = float("nan")  # after two good steps
        before = snapshot(algorithm)
        with pytest.raises(ValueError, match="teacher actions"):
            algorithm.update()
        assert_unchanged(algorithm, before)
