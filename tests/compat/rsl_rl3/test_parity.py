"""With the options of rsl_rl 3.1.2, an update gives the same parameters as its own update."""

import pytest
import torch
from rsl_rl.algorithms import PPO, Distillation
from support.policy_era import make_distillation, make_ppo, parameters_of, roll_out
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.integrations.rsl_rl_v3 import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

UPDATES = 3


class RestoringPPO(PPO):
    """rsl_rl's PPO, whose value call at the end of a rollout would advance the critic's state."""

    def compute_returns(self, obs):
        state = self.policy.get_hidden_states()[1] if self.policy.is_recurrent else None
        super().compute_returns(obs)
        if self.policy.is_recurrent:
            self.policy.memory_c.hidden_state = state


def train(make, algorithm_class, **kwargs):
    """Return the parameters after some updates, the algorithm and its last metrics."""
    algorithm = make(algorithm_class, **kwargs)
    for seed in range(UPDATES):
        roll_out(algorithm, seed)
        metrics = algorithm.update()
    return parameters_of(algorithm), algorithm, metrics


@pytest.mark.parametrize("student", ["mlp", "lstm", "gru"])
@pytest.mark.parametrize(
    ("num_steps", "num_learning_epochs", "options"),
    [(12, 2, {}), (14, 1, {"loss_type": "huber", "optimizer": "sgd"})],
)
def test_distillation_leaves_equal_parameters(student, num_steps, num_learning_epochs, options):
    shared = {
        "num_steps": num_steps,
        "num_envs": 5,
        "student": student,
        "num_learning_epochs": num_learning_epochs,
        "gradient_length": 4,
        "max_grad_norm": 0.5 if student == "mlp" else None,  # rsl_rl does not clip the memory's
        **options,
    }
    expected, stock, expected_metrics = train(make_distillation, Distillation, **shared)
    parameters, ours, metrics = train(
        make_distillation, TbpttDistillation, **shared, loss_reduction="sum", tail="drop"
    )
    torch.testing.assert_close(parameters, expected, **PARITY_FLOAT32)
    if num_steps % 4 == 0:  # rsl_rl's loss counts dropped steps, which are not trained on
        assert metrics["behavior"] == pytest.approx(expected_metrics["behavior"], rel=1e-4)
    if student != "mlp":
        state, expected_state = (a.policy.get_hidden_states()[0] for a in (ours, stock))
        torch.testing.assert_close(state, expected_state, **PARITY_FLOAT32)


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "fixed", "use_clipped_value_loss": False, "max_grad_norm": 0.1},
        {"normalize_advantage_per_mini_batch": True, "desired_kl": 1e-4},
        {"policy_kwargs": {"noise_std_type": "log"}},
        {"policy_kwargs": {"state_dependent_std": True}},
    ],
)
def test_ppo_leaves_equal_parameters(kind, options):
    shared = {
        "num_steps": 9,
        "num_envs": 8,
        "kind": kind,
        "num_learning_epochs": 2,
        "num_mini_batches": 4,
        **options,
    }
    expected, stock, expected_metrics = train(make_ppo, RestoringPPO, **shared)
    parameters, ours, metrics = train(make_ppo, TbpttPPO, **shared, shuffle_envs=False)
    torch.testing.assert_close(parameters, expected, **PARITY_FLOAT32)
    assert ours.learning_rate == pytest.approx(stock.learning_rate)
    for name, value in expected_metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


@pytest.mark.usefixtures("in_order")
def test_rnd_leaves_equal_parameters():
    # Without memory: with a recurrent policy rsl_rl also trains the predictor on padding.
    def rnd_cfg():  # rsl_rl takes an entry out of it
        return {
            "num_states": 7,
            "obs_groups": {"rnd_state": ["state"]},
            "num_outputs": 3,
            "predictor_hidden_dims": [4],
            "target_hidden_dims": [4],
            "weight": 0.5,
            "learning_rate": 1e-2,
        }

    shared = {"num_steps": 9, "num_envs": 8, "kind": "mlp", "num_learning_epochs": 2}
    expected, stock, expected_metrics = train(make_ppo, PPO, rnd_cfg=rnd_cfg(), **shared)
    parameters, ours, metrics = train(
        make_ppo, TbpttPPO, rnd_cfg=rnd_cfg(), shuffle_envs=False, **shared
    )
    torch.testing.assert_close(parameters, expected, **PARITY_FLOAT32)
    assert metrics["rnd"] == pytest.approx(expected_metrics["rnd"], rel=1e-3)
    for value, want in zip(ours.rnd.parameters(), stock.rnd.parameters(), strict=True):
        torch.testing.assert_close(value, want, **PARITY_FLOAT32)
