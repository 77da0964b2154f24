"""Properties of TbpttPPO that rsl_rl's lacks: all environments, any size, exact windows."""

import copy
import inspect
import math
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import RNNModel
from support.helpers import make_obs, make_ppo, ppo_parameters_of, roll_out_ppo
from support.inside import assert_same, everything
from support.ppo_reference import gradients_of_update
from support.tolerances import PARITY_FLOAT32, SAME_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.core import losses
from rsl_tbptt.core.hidden_state import as_tensors

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def spy_on_surrogate(algorithm, monkeypatch):
    """Record log-probabilities, old ones and advantages of every call, one list per window."""
    calls, surrogate = [], losses.clipped_surrogate

    def spy(log_prob, old_log_prob, advantages, *clips):
        calls.append((log_prob.detach(), old_log_prob, advantages))
        return surrogate(log_prob, old_log_prob, advantages, *clips)

    monkeypatch.setattr(losses, "clipped_surrogate", spy)
    return calls


@pytest.mark.parametrize(
    ("models", "options"),
    [
        ("mlp", {}),
        ("lstm", {"gradient_length": 3}),
        ("cnn-lstm", {"gradient_length": 3}),
        ("gru", {"gradient_length": 3, "minibatch_unit": "window", "burn_in_length": 2}),
    ],
)
def test_the_ratio_is_one_before_the_first_step(models, options, monkeypatch):
    algorithm = make_ppo(TbpttPPO, 8, 6, models, models, **options, num_mini_batches=1)
    for seed in range(3):
        roll_out_ppo(algorithm, seed)
        with monkeypatch.context() as patch:
            calls = spy_on_surrogate(algorithm, patch)
            algorithm.update()
        first_epoch = calls[: len(calls) // algorithm.num_learning_epochs]
        assert sum(log_prob.numel() for log_prob, _, _ in first_epoch) == 8 * 6
        for log_prob, old_log_prob, _ in first_epoch:
            torch.testing.assert_close(log_prob, old_log_prob, **PARITY_FLOAT32)


@pytest.mark.parametrize(
    ("models", "options"),
    [
        ("mlp", {}),
        ("lstm", {"gradient_length": 3}),
        ("lstm", {"gradient_length": 3, "minibatch_unit": "window", "burn_in_length": 2}),
    ],
)
def test_advantages_are_normalised_over_the_samples_of_a_mini_batch(models, options, monkeypatch):
    algorithm = make_ppo(
        TbpttPPO, 8, 6, models, models, **options, normalize_advantage_per_mini_batch=True
    )
    roll_out_ppo(algorithm, 0)
    algorithm.storage.advantages.add_(torch.arange(8.0).view(8, 1, 1))  # steps differ
    calls = spy_on_surrogate(algorithm, monkeypatch)
    algorithm.update()
    per_mini_batch = len(calls) // (algorithm.num_learning_epochs * algorithm.num_mini_batches)
    for first in range(0, len(calls), per_mini_batch):
        windows = calls[first : first + per_mini_batch]
        advantages = torch.cat([advantages.flatten() for _, _, advantages in windows])
        assert advantages.mean().abs() < 1e-5
        assert advantages.std().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("models", ["lstm", "mlp"])
def test_every_sample_is_used_once_per_epoch(models, monkeypatch):
    algorithm = make_ppo(TbpttPPO, 6, 7, models, models, num_learning_epochs=2)
    roll_out_ppo(algorithm, 0)
    expected = algorithm.storage.actions_log_prob.flatten().sort().values
    calls = spy_on_surrogate(algorithm, monkeypatch)
    algorithm.update()
    epochs = [calls[: len(calls) // 2], calls[len(calls) // 2 :]]
    for epoch in epochs:
        used = torch.cat([old_log_prob.flatten() for _, old_log_prob, _ in epoch])
        assert torch.equal(used.sort().values, expected)
    orders = [torch.cat([old.flatten() for _, old, _ in epoch]) for epoch in epochs]
    assert not torch.equal(*orders)  # shuffled again


def test_one_step_rollouts_and_one_environment_per_mini_batch_train():
    algorithm = make_ppo(TbpttPPO, 1, 4, num_mini_batches=4)
    roll_out_ppo(algorithm, 0)
    before = ppo_parameters_of(algorithm)
    algorithm.update()
    assert torch.isfinite(ppo_parameters_of(algorithm)).all()
    assert not torch.equal(ppo_parameters_of(algorithm), before)


def test_hidden_states_are_kept_once_and_survive_the_value_call():
    algorithm = make_ppo(TbpttPPO, 6, 4)
    roll_out_ppo(algorithm, 0)
    assert algorithm.storage.saved_hidden_state_a is None
    assert algorithm.storage.saved_hidden_state_c is None
    live = copy.deepcopy(algorithm.critic.get_hidden_state())
    algorithm.storage.step = 6
    with torch.inference_mode():
        algorithm.compute_returns(algorithm.storage.observations[0])
    for got, want in zip(algorithm.critic.get_hidden_state(), live, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("models", ["lstm", "mlp"])
def test_exploding_gradients_name_their_environment(models, monkeypatch):
    algorithm = make_ppo(TbpttPPO, 6, 4, models, models, non_finite="raise")
    roll_out_ppo(algorithm, 0)
    culprit = algorithm.storage.advantages[2, 1, 0].item()
    surrogate = losses.clipped_surrogate

    def exploding(log_prob, old_log_prob, advantages, *clips):
        loss = surrogate(log_prob, old_log_prob, advantages, *clips)
        return loss + torch.where(advantages == culprit, log_prob * 1e30, 0.0).square()

    monkeypatch.setattr(losses, "clipped_surrogate", exploding)
    before = ppo_parameters_of(algorithm)
    with pytest.raises(ValueError, match=r"gradients of environments \[1\] \(what was recorded"):
        algorithm.update()
    assert torch.equal(ppo_parameters_of(algorithm), before)


def test_mixed_precision_survives_many_iterations():
    algorithm = make_ppo(TbpttPPO, 6, 4, use_mixed_precision=True)
    for seed in range(4):
        roll_out_ppo(algorithm, seed)
        assert algorithm.update()["value"] > 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_mini_batches": 5}, ValueError, "num_mini_batches is 5, .* num_envs, 4"),
        (
            {"num_mini_batches": 25, "actor": "mlp", "critic": "mlp"},
            ValueError,
            "num_mini_batches is 25, .* samples",
        ),
        ({"num_micro_batches": 5}, ValueError, "num_micro_batches is 5"),
        ({"gamma": 1.01}, ValueError, "gamma is 1.01"),
        ({"dual_clip_param": math.nan}, ValueError, "dual_clip_param is nan"),
    ],
)
def test_bad_options_are_refused_by_name_and_value(options, error, message):
    with pytest.raises(error, match=message):
        roll_out_ppo(make_ppo(TbpttPPO, 6, 4, **options), 0)


def test_normalising_advantages_needs_at_least_two_samples():
    """rsl_rl's parameters become NaN with one."""
    options = {"num_mini_batches": 4, "normalize_advantage_per_mini_batch": True}
    for model in ("mlp", "lstm"):
        with pytest.raises(ValueError, match="number of samples is 1 in the smallest"):
            roll_out_ppo(make_ppo(TbpttPPO, 1, 4, model, model, **options), 0)
    with pytest.raises(ValueError, match="number of samples is 1 in the smallest"):
        roll_out_ppo(make_ppo(TbpttPPO, 1, 1, "mlp", "mlp", num_mini_batches=1), 0)
    two = make_ppo(TbpttPPO, 1, 4, "mlp", "mlp", **{**options, "num_mini_batches": 2})
    roll_out_ppo(two, 0)
    two.update()
    assert ppo_parameters_of(two).isfinite().all()


class OwnForward(RNNModel):
    """A user's model with nothing but rsl_rl's interface."""

    def forward(self, obs, *args, **kwargs):
        return super().forward(obs, *args, **kwargs)


@pytest.mark.parametrize("minibatch_unit", ["env", "window"])
def test_models_with_their_own_forward_pass_run_step_by_step(minibatch_unit):
    options = {"gradient_length": 3, "num_mini_batches": 2, "minibatch_unit": minibatch_unit}
    scanned, stepwise = (make_ppo(TbpttPPO, 8, 4, **options) for _ in range(2))
    for model in (stepwise.actor, stepwise.critic):
        model.__class__ = OwnForward
    stepwise = TbpttPPO(stepwise.actor, stepwise.critic, stepwise.storage, **options)
    for seed in range(2):
        gradients = []
        for algorithm in (scanned, stepwise):
            roll_out_ppo(algorithm, seed)
            live = [model.get_hidden_state() for model in (algorithm.actor, algorithm.critic)]
            torch.manual_seed(seed)  # a step draws actions that are not used
            gradients.append(gradients_of_update(algorithm)[0])
            for model, state in zip((algorithm.actor, algorithm.critic), live, strict=True):
                for left, right in zip(
                    as_tensors(model.get_hidden_state()), as_tensors(state), strict=True
                ):
                    assert torch.equal(left, right)
        torch.testing.assert_close(gradients[1], gradients[0], **SAME_FLOAT32)


def test_the_error_for_a_model_without_rsl_rls_distribution_names_what_is_missing():
    class Deterministic(OwnForward):
        def forward(self, obs, *args, **kwargs):
            return self.mlp(self.get_latent(obs))

    algorithm = make_ppo(TbpttPPO, 6, 4, num_mini_batches=1)
    roll_out_ppo(algorithm, 0)
    algorithm.actor.__class__ = Deterministic
    broken = TbpttPPO(algorithm.actor, algorithm.critic, algorithm.storage)
    broken.states = algorithm.states
    with pytest.raises(NotImplementedError, match="Deterministic made no action distribution"):
        broken.update()


def test_defaults_are_those_of_rsl_rl():
    ours = PpoOptions()
    elsewhere = {"self", "actor", "critic", "storage", "device", "multi_gpu_cfg"}
    for name, parameter in inspect.signature(PPO.__init__).parameters.items():
        if name not in elsewhere | {"rnd_cfg", "symmetry_cfg"}:
            assert getattr(ours, name) == parameter.default, name


def test_checkpoints_are_interchangeable_with_rsl_rl():
    source, target = make_ppo(TbpttPPO, 6, 4), make_ppo(PPO, 6, 4)
    roll_out_ppo(source, 0)
    source.update()
    target.load(source.save(), None, strict=True)
    assert torch.equal(ppo_parameters_of(target), ppo_parameters_of(source))
    again = make_ppo(TbpttPPO, 6, 4)
    again.load(target.save(), None, strict=True)
    assert torch.equal(ppo_parameters_of(again), ppo_parameters_of(source))
    assert again.learning_rate == source.learning_rate


def test_checkpoints_that_do_not_fit_are_named_and_change_nothing():
    algorithm = make_ppo(TbpttPPO, 6, 4)
    before = ppo_parameters_of(algorithm)
    for checkpoint, message in (
        ({"infos": {}}, "lacks 'actor_state_dict', it holds"),
        ({"model_state_dict": {}}, r"has a policy with \[\], expected rsl_rl 1 to 3's"),
        ({"student_state_dict": {}}, r"lacks '.*' of the actor"),
        (make_ppo(TbpttPPO, 6, 4, critic="mlp").save(), "of the critic: |for the critic"),
        (make_ppo(TbpttPPO, 6, 4, actor="gru").save(), r"'rnn\..*for the actor"),
    ):
        with pytest.raises(ValueError, match=message):
            algorithm.load(checkpoint, None, strict=True)
        assert torch.equal(ppo_parameters_of(algorithm), before)


def end_by_time(algorithm, final_obs):
    """Take two steps after which all time out; return the twin critic's final value."""
    generator = torch.Generator().manual_seed(0)
    twin = copy.deepcopy(algorithm.critic)
    all_done = torch.ones(4, dtype=torch.bool)
    with torch.inference_mode():
        for dones in (~all_done, all_done):
            obs = make_obs(4, generator)
            algorithm.act(obs)
            twin(obs)
            extras: dict[str, Any] = {"time_outs": dones}
            if final_obs is not None:
                extras["final_obs"] = dict(final_obs.items())
            algorithm.process_env_step(obs, torch.zeros(4), dones.long(), extras)
        return twin(final_obs if final_obs is not None else obs)


def test_time_outs_are_valued_by_the_final_observation_with_the_current_memory():
    algorithm = make_ppo(TbpttPPO, 2, 4)
    final_obs = make_obs(4, torch.Generator().manual_seed(9))
    final_obs["state"][3] = float("nan")
    value = end_by_time(algorithm, final_obs)
    assert (algorithm.storage.rewards[0] == 0).all()  # no episode timed out, with or without NaN
    expected = algorithm.gamma * value
    torch.testing.assert_close(
        algorithm.storage.rewards[1], expected, **SAME_FLOAT32, equal_nan=True
    )


def final_obs_of_steps(kind):
    """Yield an environment's final observations of each of four steps, and which are new."""
    first, later = make_obs(4), make_obs(4)
    kept = dict(first.items())
    yield kept, True
    yield kept, False
    yield kept, False
    if kind == "another dict":
        kept = dict(later.items())
    elif kind == "other tensors in the same dict":
        kept.update(later.items())
    else:
        for name, values in kept.items():
            values.copy_(later[name])
    yield kept, True


@pytest.mark.parametrize(
    "kind", ["another dict", "other tensors in the same dict", "other values in the same tensors"]
)
def test_final_observations_of_an_earlier_step_are_not_evaluated_again(kind):
    """Isaac Lab keeps the final observations of the last step that ended an episode."""
    algorithm = make_ppo(TbpttPPO, 4, 4)
    passes, all_done = [], torch.ones(4, dtype=torch.bool)
    algorithm.critic.register_forward_hook(lambda *_: passes.append(1))
    for step, (final_obs, is_new) in enumerate(final_obs_of_steps(kind)):
        with torch.inference_mode():
            algorithm.act(make_obs(4))
            passes.clear()
            twin = copy.deepcopy(algorithm.critic)
            extras = {"time_outs": all_done & is_new, "final_obs": final_obs}
            algorithm.process_env_step(make_obs(4), torch.zeros(4), all_done.long(), extras)
            assert len(passes) == is_new
            expected = algorithm.gamma * is_new * twin(final_obs)
        torch.testing.assert_close(algorithm.storage.rewards[step], expected, **SAME_FLOAT32)


@pytest.mark.filterwarnings("error:Time-outs are bootstrapped with the value")
def test_without_final_observations_it_warns_once_and_names_the_option():
    algorithm = make_ppo(TbpttPPO, 2, 4)
    end_by_time(algorithm, None)
    values = algorithm.storage.values[1]
    torch.testing.assert_close(algorithm.storage.rewards[1], algorithm.gamma * values)
    with pytest.warns(UserWarning, match="env.compute_final_obs=true") as caught:
        algorithm.update()
    assert len(caught) == 1
    end_by_time(algorithm, None)
    algorithm.update()


def test_no_threshold_does_not_clip():
    results = []
    for threshold in (None, 1e9, 0.1):
        algorithm = make_ppo(
            TbpttPPO, 6, 4, optimizer="sgd", max_grad_norm=threshold, shuffle_envs=False
        )
        roll_out_ppo(algorithm, 0)
        algorithm.update()
        results.append(ppo_parameters_of(algorithm))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_gradients_from_elsewhere_do_not_enter_the_update():
    results = []
    for left in (0.0, 100.0):
        algorithm = make_ppo(TbpttPPO, 6, 4, shuffle_envs=False)
        roll_out_ppo(algorithm, 0)
        for model in (algorithm.actor, algorithm.critic):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, left)
        algorithm.update()
        results.append(ppo_parameters_of(algorithm))
    assert torch.equal(*results)


@pytest.mark.parametrize(("frozen", "trained"), [("actor", "critic"), ("critic", "actor")])
@pytest.mark.parametrize("models", ["lstm", "mlp"])
def test_a_model_without_trainable_parameters_leaves_the_other_to_learn(models, frozen, trained):
    algorithm = make_ppo(TbpttPPO, 6, 8, models, models)
    getattr(algorithm, frozen).requires_grad_(False)
    before = copy.deepcopy({name: vector(algorithm, name) for name in (frozen, trained)})
    roll_out_ppo(algorithm, 0)
    algorithm.update()
    assert torch.equal(vector(algorithm, frozen), before[frozen])
    assert not torch.equal(vector(algorithm, trained), before[trained])


def vector(algorithm, role):
    return torch.nn.utils.parameters_to_vector(getattr(algorithm, role).parameters()).detach()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.pop("optimizer_state_dict"), "lacks 'optimizer_state_dict'"),
        (lambda saved: saved["optimizer_state_dict"]["param_groups"][0]["params"].pop(), "has"),
        (lambda saved: saved["optimizer_state_dict"]["param_groups"][0].pop("betas"), "betas"),
    ],
)
def test_an_optimiser_that_does_not_fit_is_refused_before_anything_is_loaded(change, message):
    source, target = (make_ppo(TbpttPPO, 6, 4) for _ in range(2))
    roll_out_ppo(source, 0)
    source.update()
    checkpoint, before = copy.deepcopy(source.save()), everything(target)
    change(checkpoint)
    with pytest.raises(ValueError, match=f"checkpoint.*{message}"):
        target.load(checkpoint, None, strict=True)
    assert_same(everything(target), before)
    target.load(checkpoint, {"actor": True, "critic": True}, strict=True)
    assert torch.equal(ppo_parameters_of(target), ppo_parameters_of(source))


def test_time_outs_are_discounted_by_the_option_as_everything_is():
    algorithm, other = (make_ppo(TbpttPPO, 6, 4, gamma=gamma) for gamma in (0.5, 0.9))
    other.gamma = 0.5
    for each in (algorithm, other):
        roll_out_ppo(each, 0)
    assert torch.equal(other.storage.rewards, algorithm.storage.rewards)
