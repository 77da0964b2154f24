"""The plan predicts an update's memory before training, and a budget sets the micro-batches."""

import copy

import pytest
import torch
from support.helpers import (
    hold_frames,
    make_distillation,
    make_ppo,
    rnd_cfg,
    roll_out,
)
from support.inside import assert_same, everything, start_states, trained_parameters
from support.triton_on_cpu import triton_engine_on_cpu

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.core.hidden_state import as_tensors
from rsl_tbptt.core.memory import PeakMemory
from rsl_tbptt.core.scan import free_buffers

T, N = 12, 120
CLOSE = 0.15  # of the peak, which a budget needs; the number of tensors is not modelled

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def distillation(gradient_length=4, num_steps=T, **options):
    options["gradient_length"] = gradient_length
    return make_distillation(TbpttDistillation, num_steps, N, **options)


def ppo(actor="lstm", critic="lstm", num_steps=T, **options):
    options = {"num_mini_batches": 2, "num_learning_epochs": 1, **options}
    return make_ppo(TbpttPPO, num_steps, N, actor, critic, **options)


CASES = {
    "distillation, overlapping windows": lambda **o: distillation(update_length=2, **o),
    "distillation, MLP": lambda **o: distillation(student="mlp", **o),
    "PPO, whole rollout": ppo,
    "PPO, windows": lambda **o: ppo(gradient_length=4, minibatch_unit="window", **o),
    "distillation, CNN with memory": lambda **o: distillation(student="cnn-lstm", **o),
    "distillation, heads": lambda **o: distillation(
        auxiliary={"x": {"target": "state", "hidden_dims": [64, 64]}}, **o
    ),
    "PPO, RND": lambda **o: ppo(
        gradient_length=4, rnd_cfg=rnd_cfg(num_outputs=8, predictor_hidden_dims=[64, 64]), **o
    ),
}

ON_A_GPU = {  # with few steps, because Triton's interpreter is slow
    "distillation": lambda **o: distillation(3, num_steps=4, scan_engine="triton", **o),
    "PPO": lambda **o: ppo(gradient_length=2, num_steps=4, scan_engine="triton", **o),
}


def planned(algorithm, **options):
    """Plan an update after a rollout."""
    roll_out(algorithm, 0, **options)
    algorithm.storage.clear()
    roll_out(algorithm, 0, **options)  # starts from states, as all rollouts but the first
    plan = algorithm.memory_plan()
    algorithm.storage.clear()
    return plan


def peak_of_second_update(algorithm, **options):
    """Count the tensors of the second update, because the first creates the optimiser's state."""
    for seed in range(2):
        roll_out(algorithm, seed, **options)
        free_buffers()
        with PeakMemory() as memory:
            algorithm.update()
    return memory.peak


@pytest.mark.parametrize("num_env_chunks", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_the_peak_is_predicted(case, num_env_chunks):
    algorithm = CASES[case](num_micro_batches=num_env_chunks)
    predicted = planned(algorithm).peak(num_env_chunks)
    assert predicted == pytest.approx(peak_of_second_update(algorithm), rel=CLOSE)


def test_a_slow_camera_is_planned_for_after_a_rollout():
    algorithm = distillation(12, student="cnn-lstm")
    before = planned(algorithm)
    peak = peak_of_second_update(algorithm, on_step=hold_frames(4))
    after = planned(algorithm, on_step=hold_frames(4))
    num_shown = (T // 4 + 1 - 1 / 4) / T  # the first step always has one
    assert after.encoded_per_open_env == pytest.approx(num_shown * before.encoded_per_open_env)
    assert after.peak(1) == pytest.approx(peak, rel=CLOSE)
    assert before.peak(1) > (1 + CLOSE) * peak


@pytest.mark.parametrize("case", ON_A_GPU)
def test_the_peak_of_the_triton_engine_is_predicted(case):
    algorithm = ON_A_GPU[case](num_micro_batches=4)
    with triton_engine_on_cpu():
        predicted = planned(algorithm).peak(4)
        assert predicted == pytest.approx(peak_of_second_update(algorithm), rel=CLOSE)


@pytest.mark.parametrize("case", ["distillation, overlapping windows", "PPO, windows"])
def test_a_budget_is_kept(case):
    unlimited = planned(CASES[case]())
    budget = (unlimited.peak(1) + unlimited.peak(3)) / 2
    algorithm = CASES[case](memory_budget_gb=budget / 1e9)
    assert peak_of_second_update(algorithm) <= (1 + CLOSE) * budget
    assert unlimited.num_micro_batches(budget) in (2, 3)


@pytest.mark.parametrize("make", [distillation, ppo])
def test_a_budget_that_cannot_be_kept_is_refused(make):
    with pytest.raises(ValueError, match=r"memory_budget_gb is 1e-06, expected at least .*e-05"):
        peak_of_second_update(make(memory_budget_gb=1e-6))


def test_a_budget_includes_the_replay_buffer():
    algorithm = distillation(buffer_rollouts=20)
    plan = planned(algorithm)
    in_buffer = plan.sizes.replay_buffer
    assert plan.num_micro_batches(in_buffer + (plan.peak(1) + plan.peak(3)) / 2) in (2, 3)
    with pytest.raises(ValueError, match=r"memory_budget_gb is .* or buffer_gb"):
        plan.num_micro_batches(0.9 * in_buffer)


@pytest.mark.parametrize("updated", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: distillation(num_mini_batches=3, buffer_rollouts=2),
        lambda: ppo(gradient_length=2),
        lambda: ppo("mlp", "mlp"),
    ],
)
def test_a_plan_leaves_everything_as_it_was(make, updated):
    algorithm = make()
    roll_out(algorithm, 0)
    if not updated and not isinstance(algorithm, TbpttPPO):
        algorithm.experience.newest()  # replaces the state None before the first rollout by zeros
    if updated:
        algorithm.update()
        roll_out(algorithm, 1)

    def all_there_is():
        models, storage = algorithm.transaction.stateful_models(), vars(algorithm.storage)
        states = [as_tensors(model.get_hidden_state()) for model in models]
        stored = {k: v for k, v in storage.items() if isinstance(v, torch.Tensor | int)}
        states += [start_states(algorithm), torch.get_rng_state(), stored]
        return copy.deepcopy([everything(algorithm), states])

    before = all_there_is()
    algorithm.memory_plan()
    assert_same(all_there_is(), before)
    assert all(p.grad is None for p in trained_parameters(algorithm))


def test_a_plan_is_made_of_whole_rollouts():
    algorithm = ppo()

    def ask(step=0, *_):
        if step in (0, 1, 5):
            with pytest.raises(ValueError, match=r"memory_plan\(\) was called at step \d"):
                algorithm.memory_plan()

    ask()
    roll_out(algorithm, 0, on_step=ask)
