"""Fused optimiser steps: rsl_rl's parameters and checkpoints, and rates on the device."""

import contextlib
import math
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.helpers import make_distillation, make_ppo, parameters_of, roll_out
from support.inside import through_a_file
from support.tolerances import PARITY_FLOAT32
from support.triton_on_cpu import triton_engine_on_cpu

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO, fused, optimizers
from rsl_tbptt.algorithms.optimizers import step_at, use_fused_kernels

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

OPTIMIZERS = ["adam", "adamw", "sgd", "rmsprop"]


def make(algorithm_class, optimizer):
    """Build a distillation in which ours and rsl_rl's take the same steps."""
    options: dict[str, Any] = (
        {"loss_reduction": "sum"} if algorithm_class is TbpttDistillation else {}
    )
    return make_distillation(
        algorithm_class, 6, 4, gradient_length=3, max_grad_norm=1.0, optimizer=optimizer, **options
    )


def train(algorithm, seeds):
    for seed in seeds:
        algorithm.student.reset()  # a checkpoint holds no state
        algorithm.last_hidden_states = (None, None)  # rsl_rl's
        roll_out(algorithm, seed)
        algorithm.update()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("writer", "reader"), [(TbpttDistillation, Distillation), (Distillation, TbpttDistillation)]
)
def test_a_run_continues_with_the_other_library_from_its_checkpoint(writer, reader, optimizer):
    source, target = make(writer, optimizer), make(reader, optimizer)
    train(source, range(2))
    target.load(through_a_file(source.save()), None, strict=True)
    for algorithm in (source, target):
        train(algorithm, range(2, 4))
    torch.testing.assert_close(parameters_of(target), parameters_of(source), **PARITY_FLOAT32)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_steps_are_fused_also_after_loading(optimizer):
    algorithm = make(TbpttDistillation, optimizer)
    for checkpoint in (None, make(Distillation, optimizer).save(), algorithm.save()):
        if checkpoint is not None:
            algorithm.load(checkpoint, None, strict=True)
        groups = algorithm.optimizer.param_groups
        assert [group.get("fused") for group in groups] == [
            None if optimizer == "rmsprop" else True
        ]
        (saved,) = algorithm.save()["optimizer_state_dict"]["param_groups"]
        assert saved.get("fused") is None  # as rsl_rl writes it


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_step_counts_live_on_the_gpu_and_are_saved_from_the_cpu(optimizer):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    layer = torch.nn.Linear(3, 2).cuda()
    classes = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop"}
    used, loaded = (
        getattr(torch.optim, classes[optimizer])(layer.parameters(), lr=0.1) for _ in range(2)
    )
    use_fused_kernels(used)
    layer(torch.ones(1, 3, device="cuda")).sum().backward()
    used.step()
    saved = used.state_dict()
    assert all(e["step"].is_cpu for e in saved["state"].values() if "step" in e)
    used.load_state_dict(through_a_file(saved))
    step_at(used, torch.full((), 0.1, dtype=torch.float64, device="cuda"))
    loaded.load_state_dict(through_a_file(saved))
    loaded.step()


@pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
def test_a_checkpoint_goes_on_at_the_configs_rate_unless_it_follows_the_kl(schedule):
    written, read, unchanged = (
        make_ppo(TbpttPPO, 4, 4, schedule=schedule, learning_rate=rate) for rate in (0.1, 0.2, 0.1)
    )
    written.learning_rate = 0.05
    saved = through_a_file(written.save())
    unchanged.load(saved, None, strict=True)
    message = "learning_rate is 0.2 and was 0.1 before.*here at 0.05"
    changes = schedule == "adaptive"
    with pytest.warns(UserWarning, match=message) if changes else contextlib.nullcontext():
        read.load(saved, None, strict=True)
    expected = (0.05, 0.05) if changes else (0.2, 0.1)
    assert (read.learning_rate, unchanged.learning_rate) == expected


@pytest.mark.parametrize("build", [make_ppo, make_distillation])
def test_groups_with_different_rates_are_refused(build):
    of_ppo = build is make_ppo
    options = {} if of_ppo else {"gradient_length": 2, "learning_rate_updates": None}
    algorithm = build(TbpttPPO if of_ppo else TbpttDistillation, 4, 4, **options)
    (group,) = algorithm.optimizer.param_groups
    algorithm.optimizer.add_param_group({"params": [group["params"].pop()], "lr": 0.0})
    roll_out(algorithm, 0)
    with pytest.raises(ValueError, match=r"have the learning rates \[0.0, 0.001\], expected one"):
        algorithm.update()


def rsl_rl_rate(rate, kl, desired_kl):
    """Return the learning rate by the rule in rsl_rl's ``PPO.update``."""
    if kl > desired_kl * 2.0:
        return max(1e-5, rate / 1.5)
    if kl < desired_kl / 2.0 and kl > 0.0:
        return min(1e-2, rate * 1.5)
    return rate


@pytest.mark.parametrize("module", [optimizers, fused])
@pytest.mark.parametrize("rate", [1e-5, 1.2e-5, 1e-3, 8e-3, 1e-2, 5e-2, 1e-6])
def test_the_rate_follows_rsl_rls_rule_to_the_last_bit(module, rate):
    for kl in (0.0, 1e-9, 4e-3, 6e-3, 0.01, 0.019, 0.021, 5.0, math.inf, math.nan):
        on_device = torch.full((), rate, dtype=torch.float64)
        with triton_engine_on_cpu():
            module.follow_kl(on_device, torch.tensor(4 * kl), 4, 0.01)
        assert on_device.item() == rsl_rl_rate(rate, kl, 0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_at_a_rate_on_the_device_is_a_step_at_that_rate(optimizer, dtype):
    stepped = []
    for on_device in (True, False):
        algorithm = make_ppo(TbpttPPO, 4, 4, optimizer=optimizer, learning_rate=0.3)
        algorithm.actor.to(dtype)
        algorithm.critic.to(dtype)
        for parameter in algorithm.actor.parameters():
            parameter.grad = torch.ones_like(parameter)
        if on_device:
            step_at(algorithm.optimizer, torch.full((), 0.02, dtype=torch.float64))
            assert algorithm.optimizer.param_groups[0]["lr"] == 0.3
        else:
            algorithm.optimizer.param_groups[0]["lr"] = 0.02
            algorithm.optimizer.step()
        stepped.append(parameters_of(algorithm))
    assert torch.equal(*stepped)
