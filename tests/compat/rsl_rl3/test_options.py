"""Options that the algorithms accept and refuse on rsl_rl 3.1.2, and how its runners find them."""

from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO, Distillation
from rsl_rl.modules import ActorCriticRecurrent, StudentTeacherRecurrent
from rsl_rl.runners import distillation_runner, on_policy_runner
from support.policy_era import OBS_GROUPS, make_actor_critic, make_distillation, make_obs, make_ppo
from support.tolerances import SAME_FLOAT32

from rsl_tbptt.compat.rsl_rl3 import model_of
from rsl_tbptt.integrations.rsl_rl_v3 import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

SIZES: dict[str, Any] = {"num_steps": 6, "num_envs": 4}


def test_the_runners_find_the_classes_by_name():
    assert distillation_runner.TbpttDistillation is TbpttDistillation
    assert on_policy_runner.TbpttPPO is TbpttPPO
    assert isinstance(make_distillation(TbpttDistillation, **SIZES).algorithm, Distillation)
    assert isinstance(make_ppo(TbpttPPO, **SIZES).algorithm, PPO)


@pytest.mark.parametrize(
    ("make", "algorithm", "options"),
    [
        (make_distillation, TbpttDistillation, {"loss_type": "kl"}),
        (make_ppo, TbpttPPO, {"teacher_cfg": {"class_name": "MLPModel"}}),
        (make_ppo, TbpttPPO, {"teacher_coef": 0.1}),
    ],
)
def test_options_that_rsl_rl_3_cannot_support_are_refused(make, algorithm, options):
    with pytest.raises((NotImplementedError, ValueError), match=f"{next(iter(options))} is"):
        make(algorithm, **SIZES, **options)


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [("mlp", {}), ("lstm", {"noise_std_type": "log"}), ("gru", {"state_dependent_std": True})],
)
def test_a_model_is_its_network_of_the_policy(kind, kwargs):
    kwargs = {**kwargs, "actor_obs_normalization": True}
    policies = [make_actor_critic(kind, **kwargs) for _ in range(2)]
    policy, seen = policies
    actor, critic = model_of(seen, "actor"), model_of(seen, "critic")
    for seed in range(2):
        obs = make_obs(3)
        torch.manual_seed(seed)
        actions = policy.act(obs)
        torch.manual_seed(seed)
        assert torch.equal(actor(obs, stochastic_output=True), actions)
        assert torch.equal(actor.output_mean, policy.action_mean)
        assert torch.equal(actor.output_std, policy.action_std)
        assert torch.equal(seen.action_std, policy.action_std)
        assert torch.equal(actor.output_entropy, policy.entropy)
        assert torch.equal(actor.get_output_log_prob(actions), policy.get_actions_log_prob(actions))
        assert torch.equal(critic(obs), policy.evaluate(obs))
    torch.testing.assert_close(actor(obs), policy.act_inference(obs), **SAME_FLOAT32)
    ids = {id(p) for model in (actor, critic) for p in model.parameters()}
    assert ids == {id(p) for p in seen.parameters()}


def test_a_policy_with_its_own_forward_pass_is_refused():
    class Clipped(ActorCriticRecurrent):
        def act_inference(self, obs):
            return super().act_inference(obs).clamp(-1, 1)

    policy = Clipped(make_obs(1), OBS_GROUPS, 2)
    algorithm = TbpttPPO(policy)
    with pytest.raises(NotImplementedError, match="The policy is a Clipped with its own forward"):
        algorithm.init_storage("rl", 4, 6, make_obs(4), [2])


def test_a_memoryless_teacher_of_a_recurrent_student_gets_its_own_observations():
    def policy():
        return StudentTeacherRecurrent(make_obs(1), OBS_GROUPS, 2, rnn_hidden_dim=6)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        policy().evaluate(make_obs(4))  # rsl_rl 3.1.2 gives it inputs of the hidden size
    algorithm = TbpttDistillation(policy(), gradient_length=3)
    algorithm.init_storage("distillation", 4, 6, make_obs(4), [2])
    assert algorithm.policy.evaluate(make_obs(4)).shape == (4, 2)
    assert algorithm.policy.teacher[0].weight.shape == (256, 7)
    optimised = {id(p) for group in algorithm.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in algorithm.policy.parameters()}


def test_an_option_changes_in_the_algorithm_or_says_that_it_cannot():
    training = make_ppo(TbpttPPO, **SIZES)
    training.entropy_coef, training.learning_rate = 0.5, 1e-5
    assert training.algorithm.options.entropy_coef == training.entropy_coef == 0.5
    assert training.algorithm.optimizer.param_groups[0]["lr"] == 1e-5
    with pytest.raises(AttributeError, match="num_mini_batches is 2, expected 4, for which"):
        training.num_mini_batches = 2
