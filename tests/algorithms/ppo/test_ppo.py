"""Properties of TbpttPPO that rsl_rl's lacks: all environments, any size, exact windows."""

import copy
from typing import Any

import pytest
import torch
from support.helpers import OwnForward, make_obs, make_ppo, roll_out
from support.inside import assert_same
from support.ppo_reference import gradients_of_update
from support.tolerances import SAME_FLOAT32

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.core import hidden_state

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


class Deterministic(OwnForward):
    def forward(self, obs, *args, **kwargs):
        return self.mlp(self.get_latent(obs))


@pytest.mark.parametrize("minibatch_unit", ["env", "window"])
def test_models_with_their_own_forward_pass_run_step_by_step(minibatch_unit):
    options = {"gradient_length": 3, "num_mini_batches": 2, "minibatch_unit": minibatch_unit}
    scanned, stepwise = (make_ppo(TbpttPPO, 8, 4, k, k, **options) for k in ("lstm", "stepwise"))
    for seed in range(2):
        gradients = []
        for algorithm in (scanned, stepwise):
            roll_out(algorithm, seed)
            models = (algorithm.actor, algorithm.critic)
            live = [hidden_state.clone(model.get_hidden_state()) for model in models]
            torch.manual_seed(seed)  # a step draws actions that are not used
            gradients.append(gradients_of_update(algorithm)[0])
            assert_same([model.get_hidden_state() for model in models], live)
        torch.testing.assert_close(gradients[1], gradients[0], **SAME_FLOAT32)


def test_the_error_for_a_model_without_rsl_rls_distribution_names_what_is_missing():
    algorithm = make_ppo(TbpttPPO, 6, 4, "stepwise", num_mini_batches=1)
    roll_out(algorithm, 0)
    algorithm.actor.__class__ = Deterministic
    with pytest.raises(NotImplementedError, match="Deterministic made no action distribution"):
        algorithm.update()


def end_by_time(algorithm, final_obs, key="final_obs"):
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
                extras[key] = dict(final_obs.items())
            algorithm.process_env_step(obs, torch.zeros(4), dones.long(), extras)
        return twin(final_obs if final_obs is not None else obs)


@pytest.mark.parametrize("key", ["final_obs", "time_out_bootstrap_obs"])
def test_time_outs_are_valued_by_the_final_observation_with_the_current_memory(key):
    algorithm = make_ppo(TbpttPPO, 2, 4)
    final_obs = make_obs(4, torch.Generator().manual_seed(9))
    final_obs["state"][3] = float("nan")
    value = end_by_time(algorithm, final_obs, key)
    assert (algorithm.storage.rewards[0] == 0).all()  # no episode timed out, with or without NaN
    expected = algorithm.gamma * value
    torch.testing.assert_close(
        algorithm.storage.rewards[1], expected, **SAME_FLOAT32, equal_nan=True
    )


def with_other_values(kept, later):
    for name, values in kept.items():
        values.copy_(later[name])
    return kept


@pytest.mark.parametrize(
    "renew",
    [
        lambda kept, later: later,
        lambda kept, later: (kept.update(later), kept)[1],
        with_other_values,
    ],
)
def test_final_observations_of_an_earlier_step_are_not_evaluated_again(renew):
    """Isaac Lab keeps the final observations of the last step that ended an episode."""
    algorithm = make_ppo(TbpttPPO, 4, 4)
    passes, all_done = [], torch.ones(4, dtype=torch.bool)
    algorithm.critic.register_forward_hook(lambda *_: passes.append(1))
    final_obs = dict(make_obs(4).items())
    for step, is_new in enumerate((True, False, False, True)):
        if step == 3:
            final_obs = renew(final_obs, dict(make_obs(4).items()))
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
