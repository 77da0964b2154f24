"""With whole-rollout windows and no shuffling, an update leaves the parameters of rsl_rl's PPO."""

import inspect
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.modules import CNN
from support.helpers import MEMORIES, MODELS, make_ppo, parameters_of, train
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

UPDATES = 3

SHARING = [(actor, "sharing") for actor in MODELS if actor in ("cnn", "images")]
SEEING = [
    ("cnn-lstm", "cnn-lstm"),
    ("cnn-gru", "sharing"),
    ("cnn-gru", "mlp"),
    ("lstm", "cnn-lstm"),
]
KINDS = list(dict.fromkeys([*MODELS, *MEMORIES]))
PAIRS = [("mlp", "gru"), ("lstm", "mlp"), *zip(KINDS, KINDS, strict=True), *SHARING, *SEEING]
OPTIONS = [
    {"schedule": "fixed", "use_clipped_value_loss": False},
    {"normalize_advantage_per_mini_batch": True, "optimizer": "sgd", "max_grad_norm": 0.1},
]

RESTORES_CRITIC_STATE = "critic_hidden_state" in inspect.getsource(PPO.compute_returns)
"""In rsl_rl before 5.5 the value call at the end of a rollout advances the critic's state."""


@pytest.fixture
def _steps_of_images(monkeypatch):
    """Make convolutions accept steps and environments: rsl_rl's CNN crashes with an RNN."""

    def forward(cnn, images):
        rows = torch.nn.Sequential.forward(cnn, images.flatten(0, -4))
        return rows.unflatten(0, images.shape[:-3])

    monkeypatch.setattr(CNN, "forward", forward)


@pytest.mark.usefixtures("in_order", "_steps_of_images")
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize(
    ("actor", "critic", "options"),
    [(*pair, {}) for pair in PAIRS]
    + [(kind, kind, options) for kind in ("mlp", "lstm") for options in OPTIONS],
)
def test_parameters_equal_rsl_rl(actor, critic, options):
    shared: dict[str, Any] = {
        "num_steps": 9,
        "num_envs": 8,
        "actor": actor,
        "critic": critic,
        "num_learning_epochs": 2,
        "num_mini_batches": 4,
        **options,
    }
    # From its second rollout on an older rsl_rl has another state in a recurrent critic.
    updates = UPDATES if RESTORES_CRITIC_STATE or critic in ("mlp", "cnn", "images") else 1
    theirs, ours = make_ppo(PPO, **shared), make_ppo(TbpttPPO, **shared, shuffle_envs=False)
    expected_metrics, metrics = (train(each, *range(updates)) for each in (theirs, ours))
    torch.testing.assert_close(parameters_of(ours), parameters_of(theirs), **PARITY_FLOAT32)
    assert ours.learning_rate == pytest.approx(theirs.learning_rate)
    rates = [ours.learning_rate, *(group["lr"] for group in ours.optimizer.param_groups)]
    assert {type(rate) for rate in rates} == {float}  # as in rsl_rl's logger and checkpoints
    for name in ("value", "surrogate", "entropy"):
        assert metrics[name] == pytest.approx(expected_metrics[name], rel=1e-3, abs=1e-5)
