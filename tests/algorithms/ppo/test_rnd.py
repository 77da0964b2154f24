"""Random network distillation (RND) under TbpttPPO: trained like rsl_rl's, without padding."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO
from support.helpers import make_ppo, parameters_of, rnd_cfg, roll_out, train
from support.inside import assert_same
from support.tolerances import PARITY_FLOAT32, SAME_FLOAT32
from torch.nn.utils import parameters_to_vector

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.algorithms.rnd import restore_rnd

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

EPOCHS = [
    {"num_learning_epochs": 1, "num_mini_batches": 1},
    {"num_learning_epochs": 2, "num_mini_batches": 4},
]


NORMALIZATIONS = ("state_normalization", "reward_normalization")


def make(algorithm_class, models, **options):
    """Build a PPO with RND; rsl_rl 5.0 removes entries from the config, so each gets a copy."""
    normalized = {n: options.pop(n) for n in NORMALIZATIONS if n in options}
    options["rnd_cfg"] = rnd_cfg(**normalized)
    return make_ppo(algorithm_class, 6, 8, models, models, **options)


def predictor_of(algorithm):
    return parameters_to_vector(algorithm.rnd.predictor.parameters()).detach().clone()


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize(("models", "done_rate"), [("mlp", 0.3), ("lstm", 0.0)])
def test_an_update_leaves_the_parameters_of_rsl_rl(models, done_rate, epochs):
    """Recurrent models without dones, because rsl_rl's RND loss also counts padding."""
    expected = make(PPO, models, **epochs)
    algorithm = make(TbpttPPO, models, **epochs, shuffle_envs=False)
    at_first = predictor_of(algorithm)
    # From its second rollout on an older rsl_rl has another state in a recurrent critic.
    for seed in range(2 if models == "mlp" else 1):
        metrics = [train(each, seed, done_rate=done_rate) for each in (algorithm, expected)]
        assert metrics[0]["rnd"] == pytest.approx(metrics[1]["rnd"], rel=1e-4)
        assert metrics[0]["value"] == pytest.approx(metrics[1]["value"], rel=1e-4)
    torch.testing.assert_close(predictor_of(algorithm), predictor_of(expected), **PARITY_FLOAT32)
    torch.testing.assert_close(parameters_of(algorithm), parameters_of(expected), **PARITY_FLOAT32)
    assert not torch.allclose(predictor_of(algorithm), at_first, rtol=1e-3)


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize(("models", "chunks"), [("lstm", 2), ("mlp", 1)])
def test_the_loss_is_the_mean_over_the_samples_of_each_mini_batch(models, chunks):
    """The loss is written out here, because a recurrent rsl_rl counts padding."""
    options = {"num_learning_epochs": 2, "num_mini_batches": 2, "shuffle_envs": False}
    algorithm = make(TbpttPPO, models, **options, num_micro_batches=chunks)
    rnd = copy.deepcopy(algorithm.rnd)
    sgd = torch.optim.SGD(algorithm.rnd.predictor.parameters(), lr=0.1)  # feels the scale
    algorithm.other_optimizers[:] = [sgd]
    optimizer = torch.optim.SGD(rnd.predictor.parameters(), lr=0.1)
    roll_out(algorithm, 0, done_rate=0.4)
    states, seen = algorithm.storage.observations["state"], []
    halves = states.flatten(0, 1).chunk(2) if models == "mlp" else states.chunk(2, dim=1)
    for half in (*halves, *halves):
        loss = torch.nn.functional.mse_loss(rnd.predictor(half), rnd.target(half).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert algorithm.update()["rnd"] == pytest.approx(sum(seen) / 4, rel=1e-5)
    expected = parameters_to_vector(rnd.predictor.parameters()).detach()
    torch.testing.assert_close(predictor_of(algorithm), expected, **PARITY_FLOAT32)


def test_the_normaliser_sees_each_sample_once_after_the_update():
    algorithm, seen = make(TbpttPPO, "lstm", state_normalization=True), []
    normalizer = algorithm.rnd.state_normalizer
    for update in range(2):
        roll_out(algorithm, update)
        assert normalizer.count == update * 6 * 8
        seen.append(algorithm.storage.observations["state"].flatten(0, 1).clone())
        algorithm.update()
    samples = torch.cat(seen)
    assert normalizer.count == len(samples)
    torch.testing.assert_close(normalizer.mean, samples.mean(0), **SAME_FLOAT32)
    torch.testing.assert_close(normalizer.std, samples.std(0, unbiased=False), **SAME_FLOAT32)


@pytest.mark.filterwarnings("ignore:An update met NaN or inf")
def test_a_rollout_that_is_dropped_leaves_the_normaliser_of_rewards_and_the_schedule():
    algorithm = make(TbpttPPO, "mlp", state_normalization=True, reward_normalization=True)
    train(algorithm, 0)
    before = copy.deepcopy(algorithm.save()["rsl_tbptt"]["rnd"])

    def poison(step, obs, rewards):
        if step == 2:
            obs["state"][1, 0] = torch.inf

    assert train(algorithm, 1, on_step=poison) == {"skipped_updates": 1.0}
    assert_same(algorithm.save()["rsl_tbptt"]["rnd"], before)


def test_a_checkpoint_without_it_is_refused_and_changes_nothing():
    algorithm, other = make(TbpttPPO, "lstm"), make_ppo(TbpttPPO, 6, 8)
    before = predictor_of(algorithm)
    foreign = {**other.save(), "rnd_state_dict": {"predictor.0.weight": torch.zeros(1)}}
    for checkpoint, message in (
        (other.save(), "lacks 'rnd_state_dict'"),
        (foreign, r"'predictor\.0\.weight' has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            algorithm.load(checkpoint, None, strict=True)
        assert torch.equal(predictor_of(algorithm), before)
    algorithm.load(other.save(), {"actor": True, "critic": True}, strict=True)


def test_a_state_of_another_device_is_moved():
    average: Any = SimpleNamespace(avg=None)
    normalizer = SimpleNamespace(disc_avg=average)
    rnd: Any = SimpleNamespace(update_counter=0, reward_normalizer=normalizer, device="meta")
    restore_rnd(rnd, {"update_counter": 3, "discounted_rewards": torch.ones(8)}, num_envs=8)
    assert average.avg.device.type == "meta"
