"""PPO's steps with the Triton engine, in its interpreter, are those of the plain functions."""

from unittest.mock import patch

import pytest
import torch
from support.cases import CASES, EXPECTED_WARNINGS, RECORDED
from support.helpers import make_ppo, roll_out
from support.triton_on_cpu import triton_engine_on_cpu

from rsl_tbptt.algorithms import TbpttPPO, fused

pytestmark = EXPECTED_WARNINGS

WITHOUT = {"mlp", "bfloat16"}
NAMES = [
    name for name in RECORDED if name.startswith("ppo") and WITHOUT.isdisjoint(name.split("-"))
]


@pytest.fixture(autouse=True)
def _interpreter():
    with triton_engine_on_cpu():
        yield


def gradients_of(algorithm, fill):
    """Return the gradients of an epoch after an update."""
    with patch.object(fused, "gaussian_terms", wraps=fused.gaussian_terms) as called:
        fill(algorithm, 0)
        algorithm.update()
        fill(algorithm, 1)
        torch.manual_seed(0)
        algorithm._add_gradients_of(slice(None), 1)
    return [p.grad for p in algorithm.parameters if p.grad is not None], called.call_count


def check(build, fill, *, is_fused):
    """Compare the gradients with those of the engine that defines them."""
    sgd = {"optimizer": "sgd", "learning_rate": 0.05}  # Adam divides small gradients by their size
    expected, number = gradients_of(build(scan_engine="reference", **sgd), fill)
    assert number == 0
    got, number = gradients_of(build(scan_engine="triton", **sgd), fill)
    assert (number > 0) == is_fused
    for ours, right in zip(got, expected, strict=True):
        assert (ours - right).norm() <= 2e-4 * right.norm() + 1e-7


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_all_options(name):
    check(CASES[name].build, CASES[name].fill, is_fused=True)


DISTRIBUTIONS = {
    "log": ({"class_name": "GaussianDistribution", "std_type": "log"}, True),
    "fixed": ({"class_name": "GaussianDistribution", "learn_std": False}, True),
    "of-state": ({"class_name": "HeteroscedasticGaussianDistribution"}, True),
    "beta": ({"class_name": "BetaDistribution"}, False),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_all_distributions(name):
    config, is_fused = DISTRIBUTIONS[name]

    def build(**options):
        kwargs = {"distribution_cfg": dict(config)}
        options |= {"num_mini_batches": 1, "num_learning_epochs": 1, "gradient_length": 3}
        # By the adaptive rule a first step's KL divergence of 0 keeps the rate, 1e-9 raises it.
        return make_ppo(TbpttPPO, 6, 4, actor_kwargs=kwargs, schedule="fixed", **options)

    check(build, roll_out, is_fused=is_fused)
