"""PPO's policy losses: worked by hand, penalised by the KL divergence, and options that clash."""

import math
from typing import Any

import pytest
import torch
from support.helpers import make_ppo, ppo_parameters_of, roll_out_ppo
from support.tolerances import SAME_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.core import losses

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

PENALTY: dict[str, Any] = {"policy_loss": "kl_penalty", "schedule": "fixed"}
RATIOS = torch.tensor([0.5, 0.9, 1.0, 1.25, 2.0, 10.0])


def losses_of_ratios(advantage, *options):
    old = torch.full_like(RATIOS, -1.5)
    advantages = torch.full_like(RATIOS, advantage)
    return losses.clipped_surrogate(RATIOS.log() + old, old, advantages, *options).tolist()


def test_the_clip_bounds_each_side():
    gains = [-loss for loss in losses_of_ratios(1.0, 0.2, 0.3)]
    assert gains == pytest.approx([0.5, 0.9, 1.0, 1.25, 1.3, 1.3])
    pains = losses_of_ratios(-2.0, 0.2, 0.3)
    assert pains == pytest.approx([1.6, 1.8, 2.0, 2.5, 4.0, 20.0])


def test_the_dual_clip_bounds_the_loss_of_an_improbable_action():
    assert losses_of_ratios(-2.0, 0.2, 0.3, 3.0) == pytest.approx([1.6, 1.8, 2.0, 2.5, 4.0, 6.0])
    gains = [-loss for loss in losses_of_ratios(1.0, 0.2, 0.3, 3.0)]
    assert gains == pytest.approx([0.5, 0.9, 1.0, 1.25, 1.3, 1.3])  # as without it


def test_the_penalty_is_added_to_the_plain_surrogate():
    log_prob, old = torch.tensor([0.0, math.log(3.0)]), torch.tensor([0.0, math.log(2.0)])
    advantages, kl = torch.tensor([-1.0, 2.0]), torch.tensor([0.25, 0.5])
    loss = losses.penalized_surrogate(log_prob, old, advantages, kl, kl_coef=4.0)
    assert loss.tolist() == pytest.approx([4 * 0.25 + 1, 4 * 0.5 - 2 * 1.5])


def test_the_value_error_is_the_larger_of_clipped_and_unclipped():
    values, returns = torch.tensor([1.0, 1.0, 0.1]), torch.tensor([1.0, -1.0, 1.0])
    old = torch.zeros(3)
    assert losses.value_error(values, returns, old, None).tolist() == pytest.approx([0, 4, 0.81])
    clipped = losses.value_error(values, returns, old, 0.2)
    assert clipped.tolist() == pytest.approx([0.8**2, 4, 0.81])


def test_the_penalty_pulls_back_to_the_policy_that_acted():
    kl = []
    for coef in (1e-3, 1e3):
        algorithm = make_ppo(
            TbpttPPO, 6, 4, **PENALTY, kl_penalty_coef=coef, num_learning_epochs=10
        )
        roll_out_ppo(algorithm, 0)
        kl.append(algorithm.update()["kl"])
    assert kl[1] < kl[0] / 4


def rollout_with_kl(algorithm, kl):
    """Roll out, then shift the stored mean of the acting policy to a KL divergence of ``kl``."""
    roll_out_ppo(algorithm, 0)
    mean, std = algorithm.storage.distribution_params
    num_actions = mean.shape[-1]
    with torch.inference_mode():
        mean.add_(std * math.sqrt(2 * kl / num_actions))


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.0066, 0.5), (0.0067, 1.0), (0.0149, 1.0), (0.0151, 2.0)]
)
def test_the_coefficient_follows_the_desired_kl(kl, factor):
    algorithm = make_ppo(
        TbpttPPO, 6, 4, **PENALTY, kl_penalty_coef=0.8, desired_kl=0.01, learning_rate=1e-12
    )
    for expected in (0.8, 0.8 * factor):
        rollout_with_kl(algorithm, kl)
        assert algorithm.update()["kl_coef"] == pytest.approx(expected)
    assert algorithm.learning_rate == 1e-12


def test_the_coefficient_follows_the_kl_of_the_last_epoch():
    algorithm = make_ppo(
        TbpttPPO, 6, 4, **PENALTY, desired_kl=1e-4, num_mini_batches=1, num_learning_epochs=3
    )
    roll_out_ppo(algorithm, 0)
    algorithm.update()  # its first epoch had the policy that acted
    assert algorithm.save()["rsl_tbptt"]["kl_coef"] == 2.0


def test_a_nan_undoes_the_change_of_the_coefficient():
    algorithm = make_ppo(TbpttPPO, 6, 4, **PENALTY, kl_penalty_coef=0.8, non_finite="raise")
    roll_out_ppo(algorithm, 0)
    algorithm.storage.returns[2, 1] = float("nan")
    with pytest.raises(ValueError, match="returns of environments"):
        algorithm.update()
    assert algorithm.save()["rsl_tbptt"]["kl_coef"] == 0.8


def test_the_coefficient_is_saved_and_loaded():
    source, target = (make_ppo(TbpttPPO, 6, 4, **PENALTY) for _ in range(2))
    rollout_with_kl(source, 1.0)
    source.update()
    assert source.save()["rsl_tbptt"]["kl_coef"] == 2.0
    target.load(source.save(), None, strict=True)
    rollout_with_kl(target, 1.0)
    assert target.update()["kl_coef"] == 2.0
    from_rsl_rl = {key: value for key, value in source.save().items() if key != "rsl_tbptt"}
    target.load(from_rsl_rl, None, strict=True)
    rollout_with_kl(target, 1.0)
    assert target.update()["kl_coef"] == 1.0


def test_the_dual_clip_reaches_the_gradient():
    results = []
    for dual_clip in (None, 1.01, 1e6):
        algorithm = make_ppo(TbpttPPO, 6, 4, dual_clip_param=dual_clip, shuffle_envs=False)
        roll_out_ppo(algorithm, 0)
        algorithm.storage.actions_log_prob.sub_(1.0)  # all ratios start near e
        algorithm.update()
        results.append(ppo_parameters_of(algorithm))
    torch.testing.assert_close(results[2], results[0], **SAME_FLOAT32)
    assert not torch.allclose(results[1], results[0], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy_loss": "kl_penalty"}, "schedule is 'adaptive'"),
        ({**PENALTY, "desired_kl": None}, "desired_kl is None"),
        ({**PENALTY, "clip_param_high": 0.3}, "clip_param_high is 0.3"),
        ({**PENALTY, "dual_clip_param": 3.0}, "dual_clip_param is 3.0"),
        ({**PENALTY, "num_learning_epochs": 1, "num_mini_batches": 1}, "num_mini_batches"),
        ({"burn_in_length": 2}, "burn_in_length is 2"),
        ({"loss_reduction": "sum"}, "loss_reduction is 'sum'"),
    ],
)
def test_options_that_clash_are_refused_by_name_and_value(options, message):
    with pytest.raises(ValueError, match=message):
        make_ppo(TbpttPPO, 6, 4, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_penalty_coef": 2.0}, "kl_penalty_coef is 2.0"),
        ({"minibatch_unit": "window"}, "minibatch_unit is 'window', which acts as 'env'"),
        ({"teacher_updates": 3}, "teacher_updates is 3"),
        ({"actor": "mlp", "critic": "mlp", "gradient_length": 3}, "gradient_length is 3"),
    ],
)
def test_options_without_effect_warn(options, message):
    with pytest.warns(UserWarning, match=message):
        make_ppo(TbpttPPO, 6, 4, **options)
