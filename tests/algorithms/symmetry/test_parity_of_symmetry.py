"""Symmetry under TbpttPPO: rsl_rl's own update for feed-forward models, refused for others."""

from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.extensions import resolve_symmetry_config
from support.helpers import make_ppo, ppo_parameters_of, roll_out_ppo
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

ENV = object()


def mirror(env, obs, actions):
    """Append the mirrored samples: all signs turned."""
    assert env is ENV
    if obs is not None:
        obs = torch.cat((obs, obs.apply(torch.neg)))
    if actions is not None:
        actions = torch.cat((actions, -actions))
    return obs, actions


def symmetry_cfg(augmentation=True, mirror_loss=True):
    cfg = {
        "data_augmentation_func": mirror,
        "use_data_augmentation": augmentation,
        "use_mirror_loss": mirror_loss,
        "mirror_loss_coeff": 0.7,
    }
    env: Any = ENV
    return resolve_symmetry_config({"symmetry_cfg": cfg}, env)["symmetry_cfg"]


def train(algorithm_class, updates=2, **options):
    algorithm = make_ppo(algorithm_class, 6, 8, "mlp", "mlp", **options)
    for seed in range(updates):
        roll_out_ppo(algorithm, seed)
        metrics = algorithm.update()
    return ppo_parameters_of(algorithm), metrics, algorithm


@pytest.mark.parametrize(
    ("augmentation", "mirror_loss", "options"),
    [(True, False, {}), (False, True, {"normalize_advantage_per_mini_batch": True})],
)
def test_parameters_equal_those_of_rsl_rl(augmentation, mirror_loss, options):
    expected, expected_metrics, other = train(
        PPO, symmetry_cfg=symmetry_cfg(augmentation, mirror_loss), **options
    )
    parameters, metrics, algorithm = train(
        TbpttPPO, symmetry_cfg=symmetry_cfg(augmentation, mirror_loss), **options
    )
    torch.testing.assert_close(parameters, expected, **PARITY_FLOAT32)
    assert metrics == pytest.approx({**expected_metrics, "skipped_updates": 0.0}, rel=1e-3)
    assert metrics["symmetry"] > 0
    assert algorithm.learning_rate == pytest.approx(other.learning_rate)


def test_symmetry_changes_the_parameters():
    results = [train(TbpttPPO, symmetry_cfg=cfg)[0] for cfg in (None, symmetry_cfg())]
    assert not torch.allclose(*results, rtol=1e-3)


def test_the_normaliser_sees_each_sample_once():
    _, _, algorithm = train(
        TbpttPPO, symmetry_cfg=symmetry_cfg(), actor_kwargs={"obs_normalization": True}
    )
    assert algorithm.actor.obs_normalizer.count == 2 * 6 * 8


def test_a_nan_undoes_the_update():
    algorithm = make_symmetric(non_finite="raise")
    before = ppo_parameters_of(algorithm)
    algorithm.storage.rewards[2, 3] = algorithm.storage.returns[2, 3] = float("nan")
    with pytest.raises(ValueError, match=r"rewards of environments \[3\], first at step 2"):
        algorithm.update()
    assert torch.equal(ppo_parameters_of(algorithm), before)


def make_symmetric(**options):
    algorithm = make_ppo(TbpttPPO, 6, 8, "mlp", "mlp", symmetry_cfg=symmetry_cfg(), **options)
    roll_out_ppo(algorithm, 0)
    return algorithm


def test_an_error_of_rsl_rl_from_a_policy_that_is_nan_is_undone():
    algorithm = make_symmetric(schedule="adaptive")
    algorithm.update()

    def poison(step, obs, rewards):
        if step == 2:
            obs["policy"][3, 0] = float("inf")

    roll_out_ppo(algorithm, 1, on_step=poison)
    before, rate = ppo_parameters_of(algorithm), algorithm.learning_rate
    with pytest.warns(UserWarning, match=r"'policy' of environments \[3\], first at step 2"):
        assert algorithm.update() == {"skipped_updates": 1.0}
    assert torch.equal(ppo_parameters_of(algorithm), before)
    assert algorithm.learning_rate == rate
    roll_out_ppo(algorithm, 2)
    assert algorithm.update()["symmetry"] > 0


def test_another_error_of_rsl_rl_is_passed_on_and_changes_nothing(monkeypatch):
    algorithm = make_symmetric()
    before, rate, rates = ppo_parameters_of(algorithm), algorithm.learning_rate, []

    def failing(self, obs):  # after all optimiser steps
        rates.append(algorithm.learning_rate)
        raise RuntimeError("no memory")

    monkeypatch.setattr(type(algorithm.critic), "update_normalization", failing)
    with pytest.raises(RuntimeError, match="no memory"):
        algorithm.update()
    assert rates != [rate]  # it had changed
    assert algorithm.learning_rate == rate
    assert torch.equal(ppo_parameters_of(algorithm), before)
    assert algorithm.storage.step == 0


@pytest.mark.parametrize(("actor", "critic"), [("mlp", "gru"), ("gru", "mlp")])
def test_recurrent_models_are_refused_with_the_reason(actor, critic):
    with pytest.raises(NotImplementedError, match=r"symmetry_cfg is set, .* no hidden"):
        make_ppo(TbpttPPO, 6, 8, actor, critic, symmetry_cfg=symmetry_cfg())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_micro_batches": 2}, "num_micro_batches is 2, expected 1"),
        ({"policy_loss": "kl_penalty", "schedule": "fixed"}, "policy_loss is 'kl_penalty'"),
        ({"teacher_coef": 0.1, "teacher_cfg": {"class_name": "MLPModel"}}, "teacher_coef is 0.1"),
    ],
)
def test_options_that_rsl_rl_lacks_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        make_ppo(TbpttPPO, 6, 8, "mlp", "mlp", symmetry_cfg=symmetry_cfg(), **options)
