"""Symmetry without memory is rsl_rl's own update; with memory it is refused."""

from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.extensions import resolve_symmetry_config
from support.cases import turn_signs
from support.helpers import make_ppo, parameters_of, roll_out, train
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def symmetry_cfg(augmentation: bool = True, mirror_loss: bool = True) -> dict[str, Any]:
    """Return a config as the installed rsl_rl hands it on."""
    cfg = {
        "data_augmentation_func": turn_signs,
        "use_data_augmentation": augmentation,
        "use_mirror_loss": mirror_loss,
        "mirror_loss_coeff": 0.7,
    }
    env: Any = None  # not needed by the function above
    return resolve_symmetry_config({"symmetry_cfg": cfg}, env)["symmetry_cfg"]


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
