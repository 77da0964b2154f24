"""The laws of TbpttPPO's gradient: exactness and invariance; tests/core has isolation."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rsl_rl.modules import distribution
from support.helpers import MEMORIES, make_ppo
from support.ppo_reference import (
    disturb,
    gradients_of_update,
    reference_gradient,
    roll_out_recording,
    whole_envs,
    windows,
)
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
    pytest.mark.filterwarnings("ignore:gradient_length is .*, more than num_steps_per_env"),
    pytest.mark.filterwarnings("ignore:minibatch_unit is 'window', which acts as 'env'"),
]

ONE_STEP = {"num_mini_batches": 1, "num_learning_epochs": 1, "entropy_coef": 0.05}
OTHER_DISTRIBUTIONS = [
    name
    for name in ("HeteroscedasticGaussianDistribution", "BetaDistribution")
    if hasattr(distribution, name)  # rsl_rl 5.0 lacks the second
]
sizes = {
    "num_steps": st.integers(1, 8),
    "num_envs": st.integers(1, 3),
    "done_rate": st.sampled_from([0.0, 0.3, 1.0]),
    "models": st.sampled_from(
        [
            *zip(MEMORIES, MEMORIES, strict=True),
            ("gru", "lstm"),
            ("lstm", "mlp"),
            ("mlp", "gru"),
            ("cnn-lstm", "cnn-gru"),
        ]
    ),
}


def make(num_steps=6, num_envs=3, models=("lstm", "lstm"), **options):
    shared = {**ONE_STEP, "value_loss_coef": 0.7}
    return make_ppo(TbpttPPO, num_steps, num_envs, *models, **{**shared, **options})


def ready(done_rate=0.3, **options):
    """Return an algorithm after two rollouts with moved parameters, and its recorded states."""
    algorithm = make(**options)
    states = roll_out_recording(algorithm, 0, done_rate)
    disturb(algorithm)
    return algorithm, states


@settings(max_examples=120)
@given(
    **sizes,
    gradient_length=st.one_of(st.none(), st.integers(1, 10)),
    unit=st.sampled_from(["env", "window"]),
)
def test_the_gradient_equals_the_stepwise_reference(
    num_steps, num_envs, done_rate, models, gradient_length, unit
):
    """It is full BPTT if ``gradient_length`` is None or not shorter than the rollout."""
    assume(num_steps * num_envs > 1)  # one advantage cannot be normalised
    length = min(gradient_length or num_steps, num_steps)
    by_window = unit == "window" and gradient_length is not None
    options = {"minibatch_unit": unit} if by_window else {}
    algorithm, states = ready(
        done_rate,
        num_steps=num_steps,
        num_envs=num_envs,
        models=models,
        gradient_length=gradient_length,
        **options,
    )
    segments = whole_envs(num_steps, num_envs, length)
    if by_window:
        segments = windows(num_steps, num_envs, length)
    expected = reference_gradient(algorithm, states, segments)
    (gradient,) = gradients_of_update(algorithm)
    torch.testing.assert_close(gradient, expected, **EXACT_FLOAT64)


@pytest.mark.parametrize("name", OTHER_DISTRIBUTIONS)
def test_other_distributions_have_the_exact_gradient_too(name):
    algorithm, states = ready(
        gradient_length=2, actor_kwargs={"distribution_cfg": {"class_name": name}}
    )
    expected = reference_gradient(algorithm, states, whole_envs(6, 3, 2))
    (gradient,) = gradients_of_update(algorithm)
    torch.testing.assert_close(gradient, expected, **EXACT_FLOAT64)


@pytest.mark.parametrize(("unit", "num_mini_batches"), [("env", 4), ("window", 2)])
def test_gradients_of_mini_batches_add_up_to_that_of_the_rollout(unit, num_mini_batches):
    options = {"num_steps": 7, "num_envs": 5, "gradient_length": 3, "minibatch_unit": unit}
    whole, _ = ready(**options)
    parts, _ = ready(**options, num_mini_batches=num_mini_batches)
    shares = [num_samples / 35 for _, num_samples in parts.batches.draw()]
    gradients = gradients_of_update(parts)
    (expected,) = gradients_of_update(whole)
    total = sum(share * gradient for share, gradient in zip(shares, gradients, strict=True))
    torch.testing.assert_close(total, expected, **EXACT_FLOAT64)


@pytest.mark.parametrize("models", [("lstm", "gru"), ("cnn-gru", "cnn-lstm")])
@pytest.mark.parametrize("unit", [{}, {"minibatch_unit": "window"}])
def test_chunks_and_engines_do_not_change_the_gradient(models, unit):
    shared = {"num_steps": 7, "num_envs": 5, "models": models, "gradient_length": 3, **unit}
    (expected,) = gradients_of_update(ready(**shared, scan_engine="reference")[0])
    for chunks in (1, 2, 5):
        algorithm, _ = ready(**shared, scan_engine="compiled", num_micro_batches=chunks)
        (gradient,) = gradients_of_update(algorithm)
        torch.testing.assert_close(gradient, expected, **EXACT_FLOAT64)
