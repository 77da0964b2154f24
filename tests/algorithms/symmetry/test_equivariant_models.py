"""A model that is equivariant by construction has no mirror loss; images are then more data."""

import pytest
import torch
from support.helpers import make_ppo, roll_out_ppo
from support.ppo_reference import gradients_of_update
from support.symmetry_reference import ENV, symmetry_cfg
from support.tolerances import EXACT_FLOAT64
from torch import nn

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
    pytest.mark.filterwarnings("ignore:gradient_length is 4, which has no effect without"),
]

NUM_STEPS, NUM_ENVS = 6, 4


def swapped(width):
    """Return the indices that swap the two halves of a vector; an odd one is last and stays."""
    half = width // 2
    return [*range(half, 2 * half), *range(half), *range(2 * half, width)]


def with_swapped(env, obs, actions):
    """Append a mirror image: the halves of all vectors swapped."""
    if obs is not None:
        obs = torch.cat((obs, obs.apply(lambda each: each[:, swapped(each.shape[1])])))
    if actions is not None:
        actions = torch.cat((actions, actions[:, swapped(actions.shape[1])]))
    return obs, actions


@torch.no_grad()
def make_equivariant(model, num_outputs):
    """Average all weights over the swap of their inputs and outputs."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            rows = swapped(module.out_features) if module.out_features != num_outputs else None
            rows = rows or (swapped(num_outputs) if num_outputs > 1 else [0])
            average(module.weight, rows, swapped(module.in_features))
            average(module.bias, rows)
        if isinstance(module, nn.RNNBase):
            hidden, gates = module.hidden_size, 4 if isinstance(module, nn.LSTM) else 3
            rows = [gate * hidden + row for gate in range(gates) for row in swapped(hidden)]
            average(module.weight_ih_l0, rows, swapped(module.input_size))
            average(module.weight_hh_l0, rows, swapped(hidden))
            average(module.bias_ih_l0, rows)
            average(module.bias_hh_l0, rows)


def average(weight, rows, columns=None):
    mirrored = weight[rows] if columns is None else weight[rows][:, columns]
    weight.copy_((weight + mirrored) / 2)


def make(num_envs, kind, symmetry=None, **options):
    options = {"num_mini_batches": 1, "num_learning_epochs": 1, "schedule": "fixed", **options}
    algorithm = make_ppo(
        TbpttPPO, NUM_STEPS, num_envs, kind, kind, symmetry_cfg=symmetry, **options
    )
    make_equivariant(algorithm.actor, 2)
    make_equivariant(algorithm.critic, 1)
    return algorithm


def doubled(algorithm, kind, **options):
    """Return an algorithm without symmetry whose environments are doubled by mirror images."""
    other, source = make(2 * NUM_ENVS, kind, **options), algorithm.storage
    storage = other.storage
    for name, values in source.observations.items():
        mirrored = values[..., swapped(values.shape[-1])]
        storage.observations[name].copy_(torch.cat((values, mirrored), 1))
    mirrored = source.actions[..., swapped(2)]
    storage.actions.copy_(torch.cat((source.actions, mirrored), 1))
    for name in ("actions_log_prob", "values", "returns", "advantages", "dones", "rewards"):
        values = getattr(source, name)
        getattr(storage, name).copy_(torch.cat((values, values), 1))
    storage.distribution_params = tuple(
        torch.cat((each, each[..., swapped(2)]), 1) for each in source.distribution_params
    )
    other.states = [(None, None)]
    storage.step = NUM_STEPS
    return other


@pytest.mark.parametrize("kind", ["lstm", "gru", "mlp"])
def test_the_mirror_loss_is_zero_and_augmentation_doubles_the_data(kind):
    cfg = {**symmetry_cfg(), "env": ENV, "data_augmentation_func": with_swapped}
    algorithm = make(NUM_ENVS, kind, cfg, gradient_length=4)
    roll_out_ppo(algorithm, 0)
    other = doubled(algorithm, kind, gradient_length=4)
    (gradient,), (expected,) = gradients_of_update(algorithm), gradients_of_update(other)
    torch.testing.assert_close(gradient, expected, **EXACT_FLOAT64)
    assert algorithm.metrics["symmetry"] < 1e-28


def test_another_model_has_a_mirror_loss():
    cfg = {**symmetry_cfg(), "env": ENV, "data_augmentation_func": with_swapped}
    algorithm = make_ppo(TbpttPPO, NUM_STEPS, NUM_ENVS, "lstm", "mlp", symmetry_cfg=cfg)
    roll_out_ppo(algorithm, 0)
    assert algorithm.update()["symmetry"] > 1e-4
