"""The laws of truncated BPTT hold for the networks of an rsl_rl 3 policy."""

import math

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.policy_era import make_distillation, make_obs, make_ppo, parameters_of, roll_out
from support.tolerances import EXACT_FLOAT64, SAME_FLOAT32

from rsl_tbptt.core import hidden_state
from rsl_tbptt.integrations.rsl_rl_v3 import TbpttDistillation, TbpttPPO

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
]


def student_parameters(algorithm):
    named = algorithm.policy.named_parameters()
    return [p for name, p in named if name.startswith(("memory_s.", "student."))]


def gradients_of_update(algorithm):
    """Run ``update()`` without its optimiser steps; return the student's gradient at each."""
    gradients = []

    def record():
        gradients.append([p.grad.clone() for p in student_parameters(algorithm)])
        return torch.zeros(())

    algorithm._optimizer_step = record
    algorithm.update()
    return gradients


def stepwise_gradients(algorithm, gradient_length):
    """Return the same by the policy's own forward pass, one step after the other."""
    policy, storage = algorithm.policy, algorithm.storage
    num_steps, num_envs = storage.num_transitions_per_env, storage.num_envs
    live = policy.get_hidden_states()
    policy.reset(hidden_states=(hidden_state.clone(algorithm.experience.start_state), None))
    gradients = []
    for first in range(0, num_steps, gradient_length):
        policy.detach_hidden_states()
        losses = []
        for t in range(first, min(first + gradient_length, num_steps)):
            if t > 0:
                done = storage.dones[t - 1].squeeze(-1).bool()
                policy.memory_s.hidden_state = hidden_state.clear(
                    policy.memory_s.hidden_state, done
                )
            actions = policy.act_inference(storage.observations[t])
            losses.append((actions - storage.privileged_actions[t]).square().mean(-1).sum())
        loss = torch.stack(losses).sum() / (gradient_length * num_envs)
        gradients.append(list(torch.autograd.grad(loss, student_parameters(algorithm))))
    policy.reset(hidden_states=live)
    return gradients


@pytest.mark.parametrize("student", ["lstm", "gru"])
@pytest.mark.parametrize("gradient_length", [1, 3, 7])
def test_gradients_equal_those_of_the_policys_own_forward_pass(student, gradient_length):
    algorithm = make_distillation(TbpttDistillation, 7, 4, student, gradient_length=gradient_length)
    roll_out(algorithm, 0)
    algorithm.storage.clear()
    roll_out(algorithm, 1)  # from a state that is not zero
    expected = stepwise_gradients(algorithm, gradient_length)
    torch.testing.assert_close(gradients_of_update(algorithm), expected, **EXACT_FLOAT64)


def grad_norm(**options):
    algorithm = make_distillation(
        TbpttDistillation, 12, 5, "mlp", update_length=12, max_grad_norm=None, **options
    )
    roll_out(algorithm, 0)
    return algorithm.update()["grad_norm"]


def test_gradient_norm_does_not_depend_on_gradient_length():
    expected = grad_norm(gradient_length=12)
    assert [grad_norm(gradient_length=k) for k in (1, 2, 5)] == pytest.approx([expected] * 3)


def test_gradient_norm_depends_on_it_when_steps_are_summed():
    assert grad_norm(gradient_length=4, loss_reduction="sum") == pytest.approx(
        12 * grad_norm(gradient_length=4)
    )


@pytest.mark.parametrize(("tail", "steps", "flushed"), [("flush", 4, 2), ("drop", 3, 0)])
def test_the_tail_is_flushed_or_dropped(tail, steps, flushed):
    algorithm = make_distillation(TbpttDistillation, 14, 5, gradient_length=4, tail=tail)
    roll_out(algorithm, 0)
    metrics = algorithm.update()
    assert (metrics["optimizer_steps"], metrics["flushed_steps"]) == (steps, flushed)


@pytest.mark.parametrize(("tail", "matters"), [("flush", True), ("drop", False)])
def test_the_label_of_the_last_step_counts_only_if_it_is_flushed(tail, matters):
    def trained(label_shift):
        algorithm = make_distillation(TbpttDistillation, 9, 5, gradient_length=4, tail=tail)
        roll_out(algorithm, 0)
        algorithm.storage.privileged_actions[-1] += label_shift
        algorithm.update()
        return parameters_of(algorithm)

    assert torch.equal(trained(0.0), trained(5.0)) is not matters


def teachers_labels(algorithm, interrupted):
    """Return the labels of a second rollout, after an update or after nothing."""
    roll_out(algorithm, 0)
    if interrupted:
        algorithm.update()
    else:
        algorithm.storage.clear()
    roll_out(algorithm, 1)
    return algorithm.storage.privileged_actions.clone()


def test_a_recurrent_teacher_is_not_interrupted_by_an_update():
    def labels(algorithm_class, interrupted):
        policy_kwargs = {"teacher_recurrent": True}
        algorithm = make_distillation(
            algorithm_class, 6, 4, policy_kwargs=policy_kwargs, gradient_length=3
        )
        return teachers_labels(algorithm, interrupted)

    expected = labels(TbpttDistillation, interrupted=False)
    torch.testing.assert_close(labels(TbpttDistillation, True), expected, **EXACT_FLOAT64)
    assert not torch.allclose(labels(Distillation, True), expected)  # rsl_rl clears its memory


@pytest.mark.parametrize(
    ("make", "algorithm_class", "num_tensors"),
    [(make_distillation, TbpttDistillation, 2), (make_ppo, TbpttPPO, 4)],
)
def test_a_done_clears_the_states_of_its_environment_only(make, algorithm_class, num_tensors):
    algorithm = make(algorithm_class, 3, 4, gradient_length=3)
    dones = torch.tensor([0, 1, 0, 1])
    with torch.inference_mode():
        obs = make_obs(4)
        algorithm.act(obs)
        algorithm.process_env_step(obs, torch.zeros(4), dones, {})
    states = algorithm.policy.get_hidden_states()
    tensors = [tensor for state in states for tensor in hidden_state.as_tensors(state)]
    assert len(tensors) == num_tensors
    for tensor in tensors:
        assert ((tensor == 0).all(-1).all(0) == dones.bool()).all()


def test_a_poisoned_episode_changes_no_other_environment():
    def states(poison):
        algorithm = make_distillation(
            TbpttDistillation, 6, 4, gradient_length=3, learning_rate=1e-9
        )

        def on_step(step, obs):
            if step == 2:
                obs["policy"][1] = poison

        roll_out(algorithm, 0, on_step=on_step)
        algorithm.update()
        return torch.stack(algorithm.policy.get_hidden_states()[0])[..., [0, 2, 3], :]

    torch.testing.assert_close(states(1e6), states(0.0), **SAME_FLOAT32)


def test_replay_without_learning_reproduces_the_states_of_the_rollout():
    algorithm = make_distillation(
        TbpttDistillation, 7, 4, gradient_length=3, num_learning_epochs=2, learning_rate=1e-300
    )
    for seed in range(2):
        roll_out(algorithm, seed)
        lived = hidden_state.clone(algorithm.policy.get_hidden_states()[0])
        algorithm.update()
        torch.testing.assert_close(algorithm.policy.get_hidden_states()[0], lived, **EXACT_FLOAT64)


def test_the_value_call_at_the_end_of_a_rollout_advances_nothing():
    algorithm = make_ppo(TbpttPPO, 5, 4)
    roll_out(algorithm, 0)
    before = hidden_state.clone(algorithm.policy.get_hidden_states()[1])
    with torch.inference_mode():
        algorithm.compute_returns(make_obs(4))
    torch.testing.assert_close(algorithm.policy.get_hidden_states()[1], before, rtol=0, atol=0)


def test_one_hidden_state_is_kept_per_rollout():
    algorithm = make_ppo(TbpttPPO, 5, 4)
    roll_out(algorithm, 0)
    assert algorithm.storage.saved_hidden_state_a is None
    assert len(algorithm.states) == 1


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_the_ratio_is_1_before_the_first_optimiser_step(kind):
    algorithm = make_ppo(TbpttPPO, 6, 4, kind, num_learning_epochs=1, num_mini_batches=1)
    for seed in range(2):
        roll_out(algorithm, seed)
        advantages = torch.rand(algorithm.storage.advantages.shape)
        algorithm.storage.advantages.copy_(advantages)
        metrics = algorithm.update()
        assert metrics["surrogate"] == pytest.approx(-advantages.mean().item(), rel=1e-9)
        # What rsl_rl 3's divergence of equal distributions is, for two actions.
        assert metrics["kl"] == pytest.approx(2 * math.log1p(1e-5))


def test_the_ratio_leaves_1_after_it():
    algorithm = make_ppo(TbpttPPO, 6, 4, num_learning_epochs=2, num_mini_batches=1)
    roll_out(algorithm, 0)
    assert algorithm.update()["kl"] > 10 * math.log1p(1e-5)
