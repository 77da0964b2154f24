"""The source of a NaN or inf is named rightly, by one more gradient at most."""

import dataclasses

import pytest
import torch
from support import fused_cells
from support.helpers import make_distillation, make_obs, make_ppo, roll_out, roll_out_ppo

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def make(models="lstm", num_envs=4, **options):
    return make_ppo(TbpttPPO, 6, num_envs, models, models, non_finite="raise", **options)


@pytest.mark.parametrize("models", ["lstm", "mlp"])
def test_a_bad_observation_after_the_last_step_names_its_environment(models):
    algorithm = make(models)
    roll_out_ppo(algorithm, 0, done_rate=0.0)
    last_obs = make_obs(4)
    last_obs["state"][2, 1] = float("nan")
    with torch.inference_mode():
        algorithm.compute_returns(last_obs)
    with pytest.raises(ValueError, match=r"returns of environments \[2\]"):
        algorithm.update()


def test_one_huge_reward_is_named_and_not_called_divergence():
    algorithm = make()

    def poison(step, obs, rewards):
        if step == 1:
            rewards[3] = 1e30

    roll_out_ppo(algorithm, 0, done_rate=1.0, on_step=poison)
    message = r"rewards of environments \[3\], first at step 1 .* \(1e\+30, too large to be squared"
    with pytest.raises(ValueError, match=message):
        algorithm.update()


@pytest.mark.parametrize("models", ["lstm", "gru", "mlp"])
@pytest.mark.parametrize("envs", [[1], [0, 3]])
def test_a_gradient_that_is_not_finite_names_its_environments(models, envs):
    algorithm = make(models)
    roll_out_ppo(algorithm, 0)
    algorithm.storage.actions_log_prob[2, envs] = -1e4  # a probability ratio of inf
    algorithm.storage.advantages[2, envs] = -1.0  # which is not clipped
    named = ", ".join(map(str, envs))
    with pytest.raises(ValueError, match=rf"the gradients of environments \[{named}\] \(what was"):
        algorithm.update()


def test_an_observation_group_that_nobody_reads_is_not_named():
    algorithm = make_distillation(TbpttDistillation, 6, 4, gradient_length=2, non_finite="raise")
    roll_out(algorithm, 0)
    algorithm.storage.observations["unread"] = torch.full((6, 4, 1), torch.nan)
    algorithm.storage.privileged_actions[5, 3, 1] = torch.nan
    with pytest.raises(ValueError, match="teacher actions"):
        algorithm.update()


@pytest.mark.parametrize("num_bad", [1, 64])
def test_the_search_takes_one_gradient(monkeypatch, num_bad):
    algorithm = make_distillation(TbpttDistillation, 6, 64, gradient_length=2, non_finite="raise")
    roll_out(algorithm, 0)
    first = torch.arange(64) < num_bad
    loss, stored = algorithm.loss, algorithm.storage.privileged_actions

    def exploding(outputs, labels):
        where = torch.isin(labels["actions"], stored[:, first])
        blown_up = torch.where(where, outputs[0] * 1e30, 0.0).square().sum(-1)
        sane = loss(outputs, labels)
        return dataclasses.replace(sane, trained=sane.trained + blown_up)

    algorithm.loss = exploding
    calls, accumulate = [], algorithm._student.accumulate
    monkeypatch.setattr(
        algorithm._student,
        "accumulate",
        lambda *args, **options: (calls.append(args), accumulate(*args, **options))[1],
    )
    named = r"\[0\]" if num_bad == 1 else r"\[0, 1, 2, 3, 4, 5, 6, 7\] and 56 more"
    with pytest.raises(ValueError, match=f"the gradients of environments {named}"):
        algorithm.update()
    assert len(calls) == 2 * 3  # three windows each in the update and in the search
    assert not any(v.requires_grad for v in algorithm.storage.observations.values())


def test_the_search_leaves_no_recordings():
    with fused_cells.cuda_engine_on_cpu():
        algorithm = make(num_mini_batches=2, scan_engine="cuda")
        for seed in range(2):
            roll_out_ppo(algorithm, seed)
            algorithm.update()
        recorded = fused_cells.recordings()
        assert recorded
        roll_out_ppo(algorithm, 2)
        algorithm.storage.actions_log_prob[2, 1] = -1e4
        algorithm.storage.advantages[2, 1] = -1.0
        with pytest.raises(ValueError, match="the gradients of environments"):
            algorithm.update()
        assert fused_cells.recordings() == recorded
