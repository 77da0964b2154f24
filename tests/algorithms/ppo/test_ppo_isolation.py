"""A NaN or 1e6 in a past episode or another environment changes no bit of TbpttPPO's gradient."""

from dataclasses import replace

import pytest
import torch
from support.helpers import make_ppo
from support.inside import add_gradient
from support.ppo_reference import disturb, gradient_of, roll_out_recording

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.core.hidden_state import as_tensors

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
]

NUM_STEPS, NUM_ENVS, VICTIM = 8, 3, 1
poisons = pytest.mark.parametrize("poison", [float("nan"), 1e6])
all_models = pytest.mark.parametrize("models", ["lstm", "cnn-gru"])


def ready(models, episode_starts_at=None, **options):
    """Return an algorithm with a full storage, in which the victim starts an episode at a step."""
    shared = {"gradient_length": 2, "num_mini_batches": 1}
    algorithm = make_ppo(TbpttPPO, NUM_STEPS, NUM_ENVS, models, models, **shared, **options)
    roll_out_recording(algorithm, 0, done_rate=0.0)
    disturb(algorithm)
    if episode_starts_at is not None:
        algorithm.storage.dones[episode_starts_at - 1, VICTIM] = 1
    return algorithm


def poison_past(algorithm, last_step, poison):
    """Poison all stored values of the victim before ``last_step``, and its first state."""
    storage = algorithm.storage
    recorded = [storage.actions, storage.actions_log_prob, storage.advantages]
    recorded += [storage.returns, storage.values, *storage.distribution_params]
    with torch.inference_mode():
        for values in (*recorded, *storage.observations.values()):
            for step in range(last_step):  # different values, because equal frames are encoded once
                values[step, VICTIM] = poison * (1 + step)
        for states in algorithm.states:
            for tensor in (*as_tensors(states[0]), *as_tensors(states[1])):
                tensor[:, VICTIM] = poison


def gradient_on(algorithm, indices, groups=None):
    """Return the gradient on segments, of other windows than the algorithm's if ``groups``."""
    own = algorithm.batches.groups
    algorithm.batches.groups = groups or own
    algorithm.optimizer.zero_grad()
    add_gradient(algorithm, indices)
    algorithm.batches.groups = own
    return gradient_of(algorithm.actor, algorithm.critic)


def gradient_from(algorithm, step):
    """Return the gradient in all environments if windows before ``step`` only run forward."""
    (group,) = algorithm.batches.groups
    group = tuple(replace(w, loss_start=w.stop) if w.stop <= step else w for w in group)
    return gradient_on(algorithm, algorithm.batches.of_envs(torch.arange(NUM_ENVS)), (group,))


@poisons
@all_models
@pytest.mark.parametrize(("chunks", "start"), [(1, 2), (2, 3)])
def test_windows_after_the_start_of_an_episode_do_not_depend_on_the_one_before(
    models, poison, chunks, start
):
    gradients, everything = [], []
    after = start + start % 2  # the first window that begins with or after the new episode
    for value in (None, poison):
        algorithm = ready(models, start, num_micro_batches=chunks)
        if value is not None:
            poison_past(algorithm, start, value)
        gradients.append(gradient_from(algorithm, after))
        everything.append(gradient_from(algorithm, 0))
    assert torch.isfinite(gradients[1]).all()
    assert torch.equal(*gradients)
    assert not torch.allclose(*everything)  # the poison is in an earlier window


@poisons
@all_models
@pytest.mark.parametrize("unit", ["env", "window"])
def test_environments_do_not_depend_on_each_other(models, poison, unit):
    gradients = []
    for value in (None, poison):
        algorithm = ready(models, minibatch_unit=unit)
        if value is not None:
            poison_past(algorithm, NUM_STEPS, value)
        others = algorithm.batches.of_envs(torch.tensor([0, 2]))
        gradients.append(gradient_on(algorithm, others))
    assert torch.isfinite(gradients[1]).all()
    assert torch.equal(*gradients)
