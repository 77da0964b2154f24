"""Auxiliary heads: the gradient of heads and model equals an independent reference."""

import pytest
import torch
from support.auxiliary_reference import (
    HEADS,
    by_ppo,
    distilling,
    gradient_of_update,
    reference_of_distillation,
    reference_of_ppo,
    roll_out_by_ppo,
    roll_out_distillation,
)
from support.tolerances import EXACT_FLOAT64

pytestmark = [
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
    pytest.mark.usefixtures("float64"),
]

T, N = 7, 4
LATENT = {"target": "teacher:mlp.0", "coef": 0.6}


@pytest.mark.parametrize(
    "options",
    [
        {"student": "gru", "num_micro_batches": 3, "batch_teacher_labels": True},
        {"student": "cnn-lstm", "num_micro_batches": 2},
        {"student": "mlp"},
    ],
    ids=str,
)
def test_a_distillation_with_heads_equals_the_reference(options):
    heads = {**HEADS, "latent": LATENT, "latent_later": {**LATENT, "delay": 1}}
    algorithm = distilling(T, N, auxiliary=heads, **options)
    for seed in range(2):  # the second begins in the middle of episodes
        past = roll_out_distillation(algorithm, seed)
        expected = reference_of_distillation(algorithm, [past])
        torch.testing.assert_close(gradient_of_update(algorithm), expected, **EXACT_FLOAT64)


def test_old_samples_keep_their_own_targets():
    algorithm = distilling(
        T,
        N,
        student="cnn-lstm",
        auxiliary={**HEADS, "latent": {**LATENT, "delay": 2}},
        buffer_rollouts=2,
        buffer_share=100.0,  # all of the past
        num_micro_batches=2,
    )
    pasts = []
    for seed in range(3):
        pasts.append(roll_out_distillation(algorithm, seed))
        expected = reference_of_distillation(algorithm, pasts)
        torch.testing.assert_close(gradient_of_update(algorithm), expected, **EXACT_FLOAT64)


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
    algorithm = by_ppo(T, N, auxiliary=HEADS, learning_rate=rate, **options)
    for seed in range(2):
        past = roll_out_by_ppo(algorithm, seed)
        length = options.get("gradient_length", 3)
        expected = rate * reference_of_ppo(algorithm, past, length)
        torch.testing.assert_close(gradient_of_update(algorithm), expected, **EXACT_FLOAT64)


def test_samples_of_heads_have_the_algorithms_weights():
    algorithm = by_ppo(T, N, auxiliary=HEADS, loss_reduction="episode_mean")
    past = roll_out_by_ppo(algorithm, 0)
    lengths = torch.zeros(T, N)
    for env in range(N):
        first = 0
        for t in range(T):
            if past.dones[t, env] or t == T - 1:
                lengths[first : t + 1, env] = t + 1 - first
                first = t + 1
    expected = reference_of_ppo(algorithm, past, weights=1 / lengths)
    torch.testing.assert_close(gradient_of_update(algorithm), expected, **EXACT_FLOAT64)
    assert not torch.allclose(expected, reference_of_ppo(algorithm, past), rtol=1e-3)
