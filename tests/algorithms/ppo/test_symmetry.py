"""Symmetry without memory is rsl_rl's own update; with memory it is refused."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.extensions import resolve_symmetry_config
from support.helpers import make_ppo, parameters_of, roll_out, train
from support.tolerances import PARITY_FLOAT32
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

ENV = object()


def image(number: int, values: Any) -> torch.Tensor:
    """Return the values of the mirror image with a number, of any shape; 0 is the original.

    Vectors have other signs or another order, pictures are flipped along another axis.
    """
    if number == 0:
        return values
    if values.dim() > 3:
        return values.flip(-number)
    signs = values.new_tensor([1.0, -1.0]).repeat(values.shape[-1])[: values.shape[-1]]
    return values * signs if number == 1 else -values.flip(-1)


def mirror(num_images: int) -> Callable[..., Any]:
    """Return a function for ``symmetry_cfg`` that appends a number of mirror images."""
    numbers = range(num_images + 1)

    def with_images(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> Any:
        assert env is ENV
        if obs is not None:
            groups = {
                name: torch.cat([image(i, values) for i in numbers]) for name, values in obs.items()
            }
            obs = TensorDict(groups, batch_size=[len(numbers) * len(obs)])
        if actions is not None:
            actions = torch.cat([image(i, actions) for i in numbers])
        return obs, actions

    return with_images


def symmetry_cfg(
    augmentation: bool = True, mirror_loss: bool = True, num_images: int = 1
) -> dict[str, Any]:
    return {
        "env": ENV,
        "data_augmentation_func": mirror(num_images),
        "use_data_augmentation": augmentation,
        "use_mirror_loss": mirror_loss,
        "mirror_loss_coeff": 0.7,
    }


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


@pytest.mark.parametrize("models", [("lstm", "mlp"), ("mlp", "gru")])
def test_symmetry_with_memory_is_refused(models):
    with pytest.raises(NotImplementedError, match=r"symmetry_cfg .* no hidden state"):
        make_ppo(TbpttPPO, 6, 8, *models, symmetry_cfg=symmetry_cfg())


def test_an_update_with_nan_is_undone():
    algorithm = make_ppo(TbpttPPO, 6, 8, "mlp", "mlp", symmetry_cfg=of_rsl_rl(symmetry_cfg()))
    before = parameters_of(algorithm)
    roll_out(algorithm, 0)
    algorithm.storage.rewards[2, 1] = torch.nan
    algorithm.storage.returns[2, 1] = torch.nan
    with pytest.warns(UserWarning, match="skipped"):
        assert algorithm.update()["skipped_updates"] == 1.0
    torch.testing.assert_close(parameters_of(algorithm), before, rtol=0.0, atol=0.0)
