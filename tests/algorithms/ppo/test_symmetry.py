"""Symmetry without memory is rsl_rl's own update; with memory it is refused."""

import pytest
import torch
from rsl_rl.algorithms import PPO
from support.cases import symmetry_cfg
from support.helpers import make_ppo, parameters_of, roll_out, train
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("augmentation", [False, True])
@pytest.mark.parametrize("mirror_loss", [False, True])
@pytest.mark.parametrize("options", [{}, {"normalize_advantage_per_mini_batch": True}])
def test_parameters_equal_those_of_rsl_rl(augmentation, mirror_loss, options):
    cfg, metrics, trained = symmetry_cfg(augmentation, mirror_loss), [], []
    for algorithm in (PPO, TbpttPPO):
        made = make_ppo(algorithm, 6, 8, "mlp", "mlp", symmetry_cfg=cfg, **options)
        metrics.append(train(made, 0, 1))
        trained.append(made)
    parameters = [parameters_of(each) for each in trained]
    torch.testing.assert_close(*parameters, **PARITY_FLOAT32)
    for name in ("value", "surrogate", "entropy", "symmetry"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-3, abs=1e-5)
    assert metrics[1]["symmetry"] > 0
    assert trained[1].learning_rate == pytest.approx(trained[0].learning_rate)


@pytest.mark.parametrize("models", [("lstm", "mlp"), ("mlp", "gru")])
def test_symmetry_with_memory_is_refused(models):
    with pytest.raises(NotImplementedError, match=r"symmetry_cfg .* no hidden state"):
        make_ppo(TbpttPPO, 6, 8, *models, symmetry_cfg=symmetry_cfg())


def test_an_update_with_nan_is_undone():
    algorithm = make_ppo(TbpttPPO, 6, 8, "mlp", "mlp", symmetry_cfg=symmetry_cfg())
    before = parameters_of(algorithm)
    roll_out(algorithm, 0)
    algorithm.storage.rewards[2, 1] = torch.nan
    algorithm.storage.returns[2, 1] = torch.nan
    with pytest.warns(UserWarning, match="skipped"):
        assert algorithm.update()["skipped_updates"] == 1.0
    torch.testing.assert_close(parameters_of(algorithm), before, rtol=0.0, atol=0.0)
