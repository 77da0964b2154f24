"""Losses that reach no parameter are refused; discrete actions have losses that do."""

import copy
from typing import Any

import pytest
import torch
from rsl_rl.models import MLPModel
from support.discrete import DISCRETE
from support.helpers import make_distillation, make_model, make_ppo, parameters_of, roll_out, train

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
]

OF_DISCRETE: dict[str, Any] = {"distribution_cfg": DISCRETE}


class Detached(MLPModel):
    """A model of your own whose outputs pass no gradient."""

    def forward(self, obs, *args, **kwargs):
        return super().forward(obs, *args, **kwargs).detach()


def distilling(num_envs=4, **options):
    return make_distillation(TbpttDistillation, 4, num_envs, gradient_length=4, **options)


def detached():
    algorithm = distilling(student="mlp")
    algorithm.student.__class__ = Detached
    algorithm.objective.replay = algorithm._replay_of(algorithm.student)
    return algorithm


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (detached, "Detached"),
        (lambda: distilling(student_kwargs=OF_DISCRETE), r".*DiscreteDistribution.*argmax"),
        (lambda: distilling(loss_type=lambda actions, labels: labels + 0), "RNNModel"),
    ],
    ids=["model", "argmax", "loss"],
)
def test_the_first_update_finds_a_loss_without_gradient_and_is_undone(make, what):
    algorithm = make()
    roll_out(algorithm, 0)
    before = parameters_of(algorithm)
    message = f"gradient of loss_type reaches no parameter of the {what}"
    with pytest.raises(ValueError, match=message):
        algorithm.update()
    assert torch.equal(parameters_of(algorithm), before)


def test_a_frozen_model_is_none_of_them():
    algorithm, ppo = distilling(), make_ppo(TbpttPPO, 4, 4, value_loss_coef=0.0)
    algorithm.student.requires_grad_(False)
    ppo.actor.requires_grad_(False)
    assert train(algorithm, 0)["grad_norm"] == 0
    assert train(ppo, 0)["actor_grad_norm"] == 0


def nll(model, obs, actions):
    """Return the reference: every action is a choice of three with its own logits."""
    log_probs = model.mlp(model.get_latent(obs)).log_softmax(-1)
    return -log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1).sum(-1)


def test_nll_of_discrete_actions_has_the_gradient_of_its_equation():
    student: dict[str, Any] = {"student": "mlp", "student_kwargs": OF_DISCRETE}
    algorithm = distilling(3, loss_type="nll", optimizer="sgd", **student)
    algorithm.teacher = teacher = make_model("teacher", "mlp", 3, seed=2, **OF_DISCRETE)
    roll_out(algorithm, 0)
    twin, stored = copy.deepcopy(algorithm.student), algorithm.storage.observations.clone()
    labels = torch.stack([teacher(obs) for obs in stored])
    assert set(labels.unique().tolist()) <= {0.0, 1.0, 2.0}
    loss = torch.stack(list(map(nll, [twin] * 4, stored, labels))).mean()
    gradient = torch.autograd.grad(loss, list(twin.parameters()))
    before = parameters_of(algorithm)
    metrics = algorithm.update()
    assert metrics["behavior"] == pytest.approx(loss.item(), rel=1e-9)
    step = (before - parameters_of(algorithm)) / algorithm.optimizer.param_groups[0]["lr"]
    expected = torch.cat([each.flatten() for each in gradient])
    norm = max(1.0, expected.norm().item())
    torch.testing.assert_close(step, expected / norm, rtol=1e-5, atol=1e-9)


def test_a_missing_discrete_label_never_reaches_the_distribution():
    algorithm = distilling(3, loss_type="nll", student_kwargs=OF_DISCRETE)
    roll_out(algorithm, 0)
    algorithm.storage.privileged_actions.clamp_(0, 2)[1, 2] = torch.nan
    with pytest.warns(UserWarning, match=r"NaN or inf in teacher actions of environments \[2\]"):
        assert algorithm.update()["skipped_updates"] == 1
