"""The learning rate falls over the updates, and a resumed run continues the schedule."""

import pytest
import torch
from rsl_rl.runners import DistillationRunner
from support.fine_tuning import distillation_cfg
from support.helpers import make_distillation, train
from support.inside import networks_of_heads, through_a_file

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt_tasks.memory import RecallEnv

RATE = 0.01
SGD = {"optimizer": "sgd", "max_grad_norm": None, "learning_rate": RATE}
HEADS = {"velocity": {"target": "state"}}


def make(**options):
    torch.manual_seed(0)
    return make_distillation(TbpttDistillation, 6, 4, student="lstm", gradient_length=3, **options)


def parameters(algorithm):
    modules = (algorithm.student, *networks_of_heads(algorithm))
    return torch.cat([p.detach().flatten().clone() for m in modules for p in m.parameters()])


@pytest.mark.parametrize(("num_updates", "share"), [(0, 1.0), (3, 0.25), (5, 0.03)])
def test_an_update_steps_at_the_scheduled_rate(num_updates, share):
    falling = make(**SGD, learning_rate_updates=4, auxiliary=HEADS)
    falling.num_updates = num_updates
    plain = make(**SGD | {"learning_rate": share * RATE}, auxiliary=HEADS)
    before = parameters(plain)
    for algorithm in (falling, plain):
        train(algorithm, 0)
    assert torch.equal(parameters(falling), parameters(plain))
    assert not torch.equal(parameters(falling), before)
    assert falling.learning_rate == pytest.approx(share * RATE)  # the value that the runner logs


@pytest.mark.parametrize(("num_updates", "share"), [(0, 1.0), (3, 0.25), (4, 0.5), (7, 0.125)])
def test_by_default_the_rate_falls_over_the_runners_iterations(num_updates, share):
    cfg = distillation_cfg(learning_rate=RATE) | {"max_iterations": 4}
    runner = DistillationRunner(RecallEnv(4, 2), cfg, log_dir=None)
    runner.alg.teacher_loaded = True
    runner.alg.num_updates = num_updates
    runner.learn(1)
    assert runner.alg.learning_rate == pytest.approx(share * RATE)


@pytest.mark.parametrize("max_iterations", [20, 8])
def test_a_training_that_was_broken_off_approaches_the_same_end(max_iterations):
    whole, resumed = make(learning_rate=RATE), make(learning_rate=RATE)
    whole.max_iterations, resumed.max_iterations = 20, max_iterations
    for seed in range(20):
        if seed == 12:
            resumed.load(through_a_file(whole.save()), None, strict=True)
        for algorithm in (whole, resumed)[: 1 + (seed >= 12)]:
            train(algorithm, seed)
        assert resumed.learning_rate == whole.learning_rate or seed < 12
    assert whole.learning_rate == pytest.approx(0.05 * RATE)
    resumed.load(through_a_file(whole.save()), None, strict=True)
    train(resumed, 20)  # a training that was finished goes on as a new one
    assert resumed.learning_rate > 0.1 * RATE


def test_without_the_option_the_rate_does_not_change():
    algorithm = make(**SGD)
    algorithm.optimizer.param_groups[0]["lr"] = 0.5  # a caller's own schedule
    train(algorithm, 0)
    assert algorithm.optimizer.param_groups[0]["lr"] == 0.5


def test_the_rate_of_the_config_acts_after_a_checkpoint():
    source, target = make(**SGD), make(**SGD | {"learning_rate": 0.5})
    target.load(source.save(), None, strict=True)
    assert target.learning_rate == target.optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("load_cfg", [{}, {"teacher": True}, {"student": True}])
def test_only_what_is_asked_for_is_loaded(load_cfg):
    source, target = make(), make()
    train(source, 0)
    target.load(source.save(), load_cfg, strict=True)
    of_student = "student" in load_cfg
    assert torch.equal(parameters(target), parameters(source)) == of_student
    assert target.num_updates == int(of_student)
    assert target.teacher_file.is_loaded == ("teacher" in load_cfg)
