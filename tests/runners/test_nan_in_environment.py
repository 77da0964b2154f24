"""One NaN from the environment costs one rollout under rsl_rl's stock runners, not the run."""

import copy

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from tensordict import TensorDict

from rsl_tbptt.algorithms.transaction import check_nan
from rsl_tbptt_tasks.memory import RecallEnv

GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.1}


class SickEnv(RecallEnv):
    """One observation of one environment is NaN, in one step."""

    def __init__(self, sick_step):
        super().__init__(4, 3)
        self.steps_to_go = sick_step

    def step(self, actions):
        self.steps_to_go -= 1
        return super().step(actions.nan_to_num())

    def get_observations(self):
        obs = super().get_observations()
        if self.steps_to_go == 0:
            obs["policy"][2, 0] = torch.nan
            self.steps_to_go = -1
        return obs


def model(class_name, **kwargs):
    return {"class_name": class_name, "hidden_dims": [8], "activation": "elu", **kwargs}


def distilling(sick_step, **options):
    options["gradient_length"] = 4
    lstm = {"rnn_type": "lstm", "rnn_hidden_dim": 8, "rnn_num_layers": 1}
    cfg = {
        "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
        "algorithm": {"class_name": "rsl_tbptt.algorithms:TbpttDistillation", **options},
        "student": model("RNNModel", **lstm, distribution_cfg=dict(GAUSSIAN)),
        "teacher": model("MLPModel", distribution_cfg=dict(GAUSSIAN)),
    }
    runner = DistillationRunner(SickEnv(sick_step), with_sizes(cfg), None)
    runner.alg.teacher_loaded = True
    return runner, runner.alg.student


def reinforcing(sick_step, **options):
    gru = {"rnn_type": "gru", "rnn_hidden_dim": 8, "rnn_num_layers": 1}
    cfg = {
        "obs_groups": {"actor": ["policy"], "critic": ["privileged"]},
        "algorithm": {"class_name": "rsl_tbptt.algorithms:TbpttPPO", **options},
        "actor": model("RNNModel", **gru, distribution_cfg=dict(GAUSSIAN)),
        "critic": model("MLPModel"),
    }
    runner = OnPolicyRunner(SickEnv(sick_step), with_sizes(cfg), None)
    return runner, runner.alg.actor


def with_sizes(cfg):
    return {"num_steps_per_env": 8, "save_interval": 100, "multi_gpu": None, **cfg}


@pytest.fixture(params=[distilling, reinforcing])
def training(request):
    return request.param


def test_training_goes_on(training):
    runner, policy = training(sick_step=11)
    with pytest.warns(UserWarning, match=r"'policy' of environments \[2\], first at step 3"):
        runner.learn(4)
    assert runner.current_learning_iteration == 3
    assert runner.alg.metrics["skipped_updates"] == 1
    assert all(torch.isfinite(parameter).all() for parameter in policy.parameters())


def test_rsl_rls_check_can_be_turned_off_where_training_ends(training):
    runner, _ = training(sick_step=11, non_finite="raise")
    runner.alg.step_checks.nan = False
    with pytest.raises(ValueError, match=r"'policy' of environments \[2\], first at step 3"):
        runner.learn(4)


def test_nan_in_an_image_is_named_however_it_lies_in_memory():
    images = torch.zeros(3, 2, 4, 5).to(memory_format=torch.channels_last)
    images[1, 0, 2, 3] = torch.nan
    obs = TensorDict({"camera": images}, batch_size=[3])
    with pytest.raises(ValueError, match=r"group 'camera' of environments \[1\]: repair"):
        check_nan(obs, torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize("name", ["rewards", "dones"])
def test_nan_in_what_else_a_step_gives_is_named(training, name, monkeypatch):
    runner, _ = training(sick_step=0, non_finite="raise")
    step = type(runner.env).step

    def sick(self, actions):
        obs, rewards, dones, extras = step(self, actions)
        given = {"rewards": rewards, "dones": dones.float()}
        given[name][torch.tensor([0, 3])] = torch.nan
        return obs, *given.values(), extras

    monkeypatch.setattr(type(runner.env), "step", sick)
    with pytest.raises(ValueError, match=rf"gave NaN in {name} of environments \[0, 3\]: repair"):
        runner.learn(1)


def test_training_can_be_started_again_where_the_runner_ended_it(training):
    runner, policy = training(sick_step=11, non_finite="raise")
    with pytest.raises(ValueError, match=r"gave NaN in observation group 'policy' of environments"):
        runner.learn(4)
    assert runner.alg.storage.step == 2  # at once, in the second rollout
    before = copy.deepcopy(policy.state_dict())
    runner.learn(2)
    assert any(not torch.equal(before[key], v) for key, v in policy.state_dict().items())
