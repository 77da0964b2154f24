"""Requirements of training are checked when training starts: playing needs one environment."""

import copy

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.fine_tuning import distillation_cfg, fine_tuning_cfg, save_untrained
from support.helpers import make_distillation, make_obs, make_ppo, roll_out, train

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt_tasks.memory import RecallEnv

PLAYED_ALONE = [
    (
        DistillationRunner,
        distillation_cfg(num_micro_batches=4),
        "num_micro_batches is 4, expected at most num_envs, 1",
    ),
    (OnPolicyRunner, fine_tuning_cfg(), "num_mini_batches is 4, expected at most num_envs, 1"),
]
"""Runners, configs that need more environments, and the errors of training."""


@pytest.mark.parametrize(("runner_class", "cfg", "message"), PLAYED_ALONE)
def test_one_environment_is_enough_to_play_and_training_names_what_is_missing(
    runner_class, cfg, message, tmp_path
):
    teacher = DistillationRunner(RecallEnv(8, 3), distillation_cfg(), log_dir=None)
    save_untrained(teacher, tmp_path / "student.pt")
    cfg = copy.deepcopy(cfg)  # rsl_rl may edit it
    larger = copy.deepcopy({**cfg, "algorithm": {**cfg["algorithm"], "num_micro_batches": 1}})
    source = runner_class(RecallEnv(8, 3), larger, log_dir=None)
    source.load(str(tmp_path / "student.pt"))
    save_untrained(source, tmp_path / "model.pt")
    runner = runner_class(RecallEnv(1, 3), cfg, log_dir=None)
    runner.load(str(tmp_path / "model.pt"))
    obs = runner.env.get_observations()
    assert torch.equal(runner.get_inference_policy()(obs), source.get_inference_policy()(obs))
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            runner.learn(1)


def test_a_share_of_zero_environments_does_not_warn_while_playing():
    options = {"gradient_length": 3, "teacher_action_share": 0.05}
    algorithm = make_distillation(TbpttDistillation, 6, 10, **options)
    with pytest.warns(UserWarning, match=r"share is 0\.05, which has no effect: of num_envs, 10,"):
        roll_out(algorithm, 0)
    algorithm.update()
    roll_out(algorithm, 1)  # once


def test_acting_keeps_no_graph_in_a_loop_of_your_own():
    for algorithm in (
        make_distillation(TbpttDistillation, 6, 4, gradient_length=3),
        make_ppo(TbpttPPO, 6, 4),
    ):
        algorithm.act(make_obs(4))
        for model in algorithm.stateful_models().values():
            assert not any(state.requires_grad for state in as_tensors(model.get_hidden_state()))


@pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")
@pytest.mark.parametrize("kind", ["lstm", "gru", "sru"])
def test_a_training_goes_on_after_its_models_have_played_in_fewer_environments(kind):
    distilling = make_distillation(TbpttDistillation, 6, 4, kind, kind, gradient_length=3)
    for algorithm in (distilling, make_ppo(TbpttPPO, 6, 4, kind, kind)):
        train(algorithm, 0)
        algorithm.eval_mode()
        with torch.inference_mode():
            for model in algorithm.stateful_models().values():
                model.reset()
                model(make_obs(3))
        algorithm.train_mode()  # as the runner's learn() does
        assert train(algorithm, 1)["skipped_updates"] == 0.0
