"""Symmetry without memory equals rsl_rl's; its options and errors are those of TbpttPPO."""

import copy
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.extensions import resolve_symmetry_config
from support.helpers import make_ppo, parameters_of, roll_out, train
from support.symmetry_reference import ENV, symmetry_cfg
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

OTHER = {
    "actor_kwargs": {"distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution"}}
}


def of_rsl_rl(cfg):
    """Return a config as the installed rsl_rl hands it on."""
    cfg = {name: value for name, value in cfg.items() if name != "env"}
    env: Any = ENV
    return resolve_symmetry_config({"symmetry_cfg": cfg}, env)["symmetry_cfg"]


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("augmentation", [False, True])
@pytest.mark.parametrize("mirror_loss", [False, True])
@pytest.mark.parametrize(
    ("num_images", "options"),
    [
        (1, {}),
        (2, {}),
        (1, {"normalize_advantage_per_mini_batch": True}),
        (1, {**OTHER, "schedule": "fixed"}),
    ],
)
def test_parameters_equal_those_of_rsl_rl(num_images, augmentation, mirror_loss, options):
    cfg, metrics, trained = symmetry_cfg(augmentation, mirror_loss, num_images), [], []
    for algorithm in (PPO, TbpttPPO):
        options = copy.deepcopy(options)  # rsl_rl before 5.5 removes entries from it
        made = make_ppo(algorithm, 6, 8, "mlp", "mlp", symmetry_cfg=of_rsl_rl(cfg), **options)
        metrics.append(train(made, 0, 1))
        trained.append(made)
    parameters = [parameters_of(each) for each in trained]
    torch.testing.assert_close(*parameters, **PARITY_FLOAT32)
    for name in ("value", "surrogate", "entropy", "symmetry"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-3, abs=1e-5)
    assert metrics[1]["symmetry"] > 0
    assert trained[1].learning_rate == pytest.approx(trained[0].learning_rate)


def test_the_normaliser_sees_each_sample_once():
    options = {"symmetry_cfg": symmetry_cfg(), "actor_kwargs": {"obs_normalization": True}}
    algorithm = make_ppo(TbpttPPO, 6, 8, "mlp", "mlp", **options)
    train(algorithm, 0, 1)
    assert algorithm.actor.obs_normalizer.count == 2 * 6 * 8


def test_the_plan_of_memory_counts_mirrored_robots():
    peaks = []
    for cfg in (None, symmetry_cfg(), symmetry_cfg(num_images=2)):
        algorithm = make_ppo(TbpttPPO, 6, 64, "lstm", "gru", symmetry_cfg=cfg)
        roll_out(algorithm, 0)
        peaks.append(algorithm.memory_plan().peak(1))
    assert peaks[0] < peaks[1] < peaks[2]
