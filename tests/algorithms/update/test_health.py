"""Health metrics of an update are correct and finite, and warn once."""

import warnings

import pytest
import torch
from support.helpers import make_distillation, make_ppo, roll_out, train
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.health import (
    LIMITS,
    SATURATED,
    FirstReplay,
    HealthWatch,
    explained_variance,
    limit_of,
    obs_scales,
)

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
]

NUM_STEPS, NUM_ENVS = 6, 8


def ppo(**options):
    return make_ppo(TbpttPPO, NUM_STEPS, NUM_ENVS, num_mini_batches=1, **options)


def distillation(**options):
    return make_distillation(TbpttDistillation, NUM_STEPS, NUM_ENVS, gradient_length=2, **options)


@pytest.mark.parametrize(
    ("actor", "options"),
    [
        ("mlp", {}),
        ("lstm", {}),
        ("gru", {"gradient_length": 2, "minibatch_unit": "window"}),
        ("cnn-lstm", {}),
    ],
)
def test_an_exact_replay_differs_from_the_rollout_only_by_rounding(actor, options):
    metrics = train(ppo(actor=actor, learning_rate=0.1, **options), 0, 1)
    assert metrics["replay_difference"] < 1e-9
    assert metrics["kl"] > 1e-3  # later steps of the update are further from the rollout


def test_a_policy_that_changed_since_it_acted_is_detected():
    algorithm = ppo()
    roll_out(algorithm, 0)
    stored = algorithm.storage.actions_log_prob
    stored[2, 3] -= 1.0  # one action was half as likely as its replay says, and less
    metrics = algorithm.update()
    assert metrics["replay_difference"] == pytest.approx(torch.e - 1.0, rel=1e-9)


def test_the_share_of_clipped_samples_is_that_of_rsl_rls_ratio():
    algorithm = ppo(num_learning_epochs=1, clip_param=0.2)
    roll_out(algorithm, 0)
    changed = torch.zeros(NUM_STEPS, NUM_ENVS, 1)
    changed[0, :3] = 0.3  # ratio 0.74: below 0.8
    changed[1, :5] = -0.1  # ratio 1.11: not above 1.2
    changed[2, :2] = -0.3  # ratio 1.35
    algorithm.storage.actions_log_prob += changed
    assert algorithm.update()["clip_fraction"] == pytest.approx(5 / 48, rel=1e-12)


def test_explained_variance_by_hand():
    returns = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert explained_variance(returns - 7.0, returns) == 1.0  # an offset does not matter
    assert explained_variance(torch.zeros(2, 2), returns) == 0.0
    assert explained_variance(0.5 * returns, returns) == 0.75
    assert explained_variance(-9.0 * returns, returns) == -1.0
    assert explained_variance(returns, torch.ones(2, 2)) == 1.0


@pytest.mark.parametrize(("num_micro_batches", "loss_type"), [(1, "mse"), (3, "nll")])
def test_the_students_share_is_that_of_the_labels_variance(num_micro_batches, loss_type):
    algorithm = distillation(
        update_length=NUM_STEPS, num_micro_batches=num_micro_batches, loss_type=loss_type
    )
    student, means = algorithm.student, []
    roll_out(
        algorithm, 0, on_step=lambda step, _: step and means.append(student.output_mean.clone())
    )
    means.append(student.output_mean.clone())
    labels = algorithm.storage.privileged_actions.clone()
    rows = labels.flatten(0, 1)
    error = (torch.stack(means) - labels).square().mean((0, 1)).sum()
    share = max(1.0 - (error / rows.var(0, correction=0).sum()).item(), -1.0)
    metrics = algorithm.update()
    assert metrics["explained_variance/student"] == pytest.approx(share, rel=1e-9)
    std, scale = rows.std(0, correction=0).max(), rows.square().mean(0).sqrt().max()
    assert metrics["label_std"] == pytest.approx(std.item(), rel=1e-9)
    assert metrics["label_scale"] == pytest.approx(scale.item(), rel=1e-9)


def test_units_of_the_memory_by_hand():
    first = FirstReplay()
    outputs = torch.zeros(4, 5, 5)
    outputs[..., 0] = 1.0  # saturated, and never moves
    outputs[..., 1] = torch.linspace(-SATURATED, SATURATED, 20).view(4, 5)
    outputs[..., 2] = 5e-4
    outputs[:, 2:, 3], outputs[:, :2, 4] = 0.3, 0.3  # move from one piece to the next alone
    with first.watching(first=True):
        for envs in (slice(2), slice(2, 5)):
            first.see_memory(outputs[:, envs].flatten(0, 1))
    outputs[..., 2] = 1.0
    first.see_memory(outputs.flatten(0, 1))  # not watching
    metrics = first.metrics()
    assert metrics["saturated_units"].item() == pytest.approx(1 / 5)
    assert metrics["dead_units"].item() == pytest.approx(2 / 5)
    with first.watching(first=True):
        first.see_memory(torch.rand(3, 2))
    assert first.metrics()["dead_units"] == 0.0  # what was seen before is forgotten


def test_the_scale_of_observations_is_that_of_the_networks_inputs():
    obs = TensorDict({"policy": torch.ones(8, 5), "state": torch.ones(8, 7)}, batch_size=[8])
    obs["policy"][:, 4] = 1e3
    for normalizes, name in ((False, "obs_scale"), (True, "normalized_obs_scale")):
        kwargs = {"obs_normalization": normalizes}
        algorithm = ppo(actor_kwargs=kwargs)
        if normalizes:
            algorithm.actor.obs_normalizer._std.fill_(10.0)
        scales = obs_scales({"actor": algorithm.actor, "teacher": None, "other": nn.ReLU()}, obs)
        expected = 1e3 / 10.01 if normalizes else 1e3
        assert {key: value.item() for key, value in scales.items()} == {
            f"{name}/actor/policy": pytest.approx(expected)
        }


@pytest.mark.parametrize("make", [ppo, distillation])
def test_every_metric_of_the_docs_is_reported_and_every_limit_has_a_metric(make, request):
    page = (request.config.rootpath / "docs" / "howto" / "health.md").read_text()
    algorithm = make()
    metrics = {*train(algorithm, 0)}
    seen = {name for name in metrics if limit_of(name) is not None}
    shared = {"saturated_units", "dead_units", "grad_norm_jump"}
    assert shared <= seen
    for name in LIMITS:
        assert f"`{name}`" in page, name
    own = {name for name in seen if limit_of(name) is not LIMITS.get(name)}
    assert all(name.startswith("obs_scale/") for name in own)


def caught(watch, name, values, **others):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for value in values:
            watch({name: value, **others})
    return [str(warning.message) for warning in found]


@pytest.mark.parametrize("name", sorted(LIMITS.keys() - {"grad_norm_jump"}))
def test_each_limit_warns_once_after_so_many_updates_in_a_row(name):
    limit = LIMITS[name]
    ill, well = (limit.bound - 1, limit.bound) if limit.below else (limit.bound + 1, limit.bound)
    nearly = [ill] * (limit.updates - 1)
    assert caught(HealthWatch(), name, [*nearly, well, *nearly]) == []
    (message,) = caught(HealthWatch(), name, [*nearly, ill, well, *nearly, ill])
    assert message.startswith(f"Loss/{name} is ")
    assert limit.advice in message


def test_a_limit_applies_to_all_metrics_of_a_kind_without_their_own():
    assert limit_of("obs_scale/student/policy") is LIMITS["obs_scale"]
    assert limit_of("obs_scale/teacher/policy") is LIMITS["obs_scale/teacher"]
    assert limit_of("explained_variance/critic") is LIMITS["explained_variance/critic"]
    assert limit_of("behavior") is None


def test_a_students_limit_is_that_of_held_out_environments_if_there_are_any():
    name, other = "held_out/explained_variance", {"explained_variance/student": 0.0}
    (message,) = caught(HealthWatch(), name, [0.0] * LIMITS[name].updates, **other)
    assert message.startswith(f"Loss/{name} is 0")


def test_a_gradient_norm_is_compared_with_its_median():
    watch = HealthWatch()
    for _ in range(9):
        assert watch({"grad_norm": 1.0}) == {"grad_norm_jump": 1.0}
    assert watch({"grad_norm": 30.0}) == {"grad_norm_jump": 1.0}  # too few to judge
    assert watch({"grad_norm": 12.0, "actor_grad_norm": 1.0}) == {"grad_norm_jump": 12.0}
