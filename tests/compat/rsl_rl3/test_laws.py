"""The laws of truncated BPTT hold for the networks of an rsl_rl 3 policy."""

import math

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.policy_era import make_distillation, make_obs, make_ppo, roll_out
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.core import hidden_state
from rsl_tbptt.integrations.rsl_rl_v3 import TbpttDistillation, TbpttPPO

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
]


def teachers_labels(algorithm, interrupted):
    """Return the labels of a second rollout, with or without an update before it."""
    roll_out(algorithm, 0)
    if interrupted:
        algorithm.update()
    else:
        algorithm.storage.clear()
    roll_out(algorithm, 1)
    return algorithm.storage.privileged_actions.clone()


def test_a_recurrent_teacher_is_not_interrupted_by_an_update():
    def labels(algorithm_class, interrupted):
        policy_kwargs = {"teacher_recurrent": True}
        algorithm = make_distillation(
            algorithm_class, 6, 4, policy_kwargs=policy_kwargs, gradient_length=3
        )
        return teachers_labels(algorithm, interrupted)

    expected = labels(TbpttDistillation, interrupted=False)
    torch.testing.assert_close(labels(TbpttDistillation, True), expected, **EXACT_FLOAT64)
    assert not torch.allclose(labels(Distillation, True), expected)  # rsl_rl clears its memory


def test_the_value_call_at_the_end_of_a_rollout_advances_nothing():
    algorithm = make_ppo(TbpttPPO, 5, 4)
    roll_out(algorithm, 0)
    before = hidden_state.clone(algorithm.policy.get_hidden_states()[1])
    with torch.inference_mode():
        algorithm.compute_returns(make_obs(4))
    torch.testing.assert_close(algorithm.policy.get_hidden_states()[1], before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_the_ratio_is_1_before_the_first_optimiser_step(kind):
    algorithm = make_ppo(TbpttPPO, 6, 4, kind, num_learning_epochs=1, num_mini_batches=1)
    for seed in range(2):
        roll_out(algorithm, seed)
        advantages = torch.rand(algorithm.storage.advantages.shape)
        algorithm.storage.advantages.copy_(advantages)
        metrics = algorithm.update()
        assert metrics["surrogate"] == pytest.approx(-advantages.mean().item(), rel=1e-9)
        # rsl_rl 3's divergence of equal distributions, for two actions.
        assert metrics["kl"] == pytest.approx(2 * math.log1p(1e-5))
