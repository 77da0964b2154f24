"""Several teachers under runners, in several processes, and when the student is continued."""

import copy
import shutil
from typing import Any

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.fine_tuning import distillation_cfg, fine_tuning_cfg, save_untrained
from support.rank_processes import group, run_ranks
from support.several_teachers import (
    make,
    save_teachers,
)
from support.trained import load_policy

from rsl_tbptt_tasks.memory import RecallEnv


class Skills(RecallEnv):
    """The recall task with another skill at every step."""

    def get_observations(self):
        obs = super().get_observations()
        obs["skill"] = (self.episode_length_buf % 2).float().unsqueeze(-1)
        return obs


RNN = {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 8, "rnn_num_layers": 1}


def several(folder) -> dict[str, Any]:
    """Return two teachers, whose files a PPO runner wrote."""
    teachers = {}
    for name, groups, kind in (("tell", ["privileged"], {}), ("guess", ["policy"], RNN)):
        cfg = fine_tuning_cfg(num_mini_batches=1)
        cfg["obs_groups"]["actor"] = groups
        actor = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu", **kind}
        actor["distribution_cfg"] = {"class_name": "GaussianDistribution", "init_std": 0.3}
        cfg["actor"] = copy.deepcopy(actor)
        path = folder / f"{name}.pt"
        save_untrained(OnPolicyRunner(Skills(4, 3), cfg, log_dir=None), path)
        teachers[name] = {"cfg": actor, "checkpoint": str(path), "obs_groups": groups}
    return {
        "class_name": "rsl_tbptt.models:SelectedTeachers",
        "selector": "skill",
        "teachers": teachers,
    }


def run(folder, num_envs=4, **options):
    cfg = {**distillation_cfg(**options), "teacher": several(folder)}
    return DistillationRunner(Skills(num_envs, 3), cfg, log_dir=None)


@pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped")
def test_a_run_learns_resumes_plays_and_continues_without_the_files(tmp_path):
    folder = tmp_path / "teachers"
    folder.mkdir()
    runner, metrics = run(folder, learning_rate=1e-2), []
    update = runner.alg.update
    runner.alg.update = lambda: update() | (metrics.append(runner.alg.metrics) or {})
    runner.learn(20)
    runner.learn(1)  # the files are not needed again
    for name in ("behavior", "behavior/tell", "behavior/guess"):
        assert metrics[-1][name] < metrics[0][name]
    save_untrained(runner, tmp_path / "model.pt")
    assert load_policy(tmp_path / "model.pt").is_recurrent  # as the tools do
    cfg = {**distillation_cfg(), "teacher": several(folder)}
    shutil.rmtree(folder)
    resumed = DistillationRunner(Skills(4, 3), copy.deepcopy(cfg), log_dir=None)
    resumed.load(str(tmp_path / "model.pt"))
    resumed.learn(1)
    player = DistillationRunner(Skills(1, 3), copy.deepcopy(cfg), log_dir=None)
    player.load(str(tmp_path / "model.pt"), {"student": True})
    player.get_inference_policy()(player.env.get_observations())
    fresh = DistillationRunner(Skills(4, 3), copy.deepcopy(cfg), log_dir=None)
    with pytest.raises(ValueError, match=r"The teacher 'tell' cannot be loaded from '.*tell\.pt'"):
        fresh.learn(1)
    cfg = fine_tuning_cfg(
        num_mini_batches=1,
        teacher_cfg=several(tmp_path),
        teacher_coef=0.5,
    )
    ppo = OnPolicyRunner(Skills(4, 3), cfg, log_dir=None)
    ppo.load(str(tmp_path / "model.pt"))
    ppo.learn(2)
    assert torch.isfinite(torch.nn.utils.parameters_to_vector(ppo.alg.actor.parameters())).all()


def test_ppo_imitates_several_teachers_from_the_start(tmp_path):
    chosen = {
        "num_mini_batches": 1,
        "teacher_cfg": several(tmp_path),
        "critic_warmup_iterations": 0,
    }
    ppo = OnPolicyRunner(Skills(4, 3), fine_tuning_cfg(**copy.deepcopy(chosen)), log_dir=None)
    ppo.learn(1)
    assert ppo.alg.save()["rsl_tbptt"]["imitation"]["num_updates"] == 1
    chosen["teacher_checkpoint"] = "teacher.pt"
    ppo = OnPolicyRunner(Skills(4, 3), fine_tuning_cfg(**chosen), log_dir=None)
    with pytest.raises(ValueError, match=r"'teacher\.pt', expected None with several teachers"):
        ppo.learn(1)


SHARES = (2, 3)


def start_of_rank(rank, config, folder):
    missing = {**config, "hop": {**config["hop"], "checkpoint": "nowhere.pt"}}
    message = "On rank 1: The teacher 'hop' cannot be loaded from 'nowhere.pt'"
    with group(rank, SHARES, folder) as share:
        chosen = missing if rank == 1 else config
        refused = make(chosen, num_envs=SHARES[rank], multi_gpu_cfg=share.cfg)
        with pytest.raises(ValueError, match=message):
            refused.lazy_teacher.start_training()


@pytest.mark.long
def test_a_file_missing_in_one_process_ends_all(tmp_path):
    run_ranks(start_of_rank, (save_teachers(tmp_path), str(tmp_path)), len(SHARES))
