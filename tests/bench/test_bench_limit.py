"""The operations of an update's matrix products are counted right."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rsl_tbptt.bench.case import OBS_DIM, Case, build, fill
from rsl_tbptt.bench.limit import update_flops

TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)


@pytest.mark.parametrize("camera_period", [None, 1])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("algorithm", "gradient_length"), [("distillation", 6), ("distillation", 3), ("ppo", 6)]
)
def test_operations_are_those_of_rsl_rls_update(
    algorithm, gradient_length, rnn_type, num_layers, camera_period, monkeypatch
):
    if camera_period and algorithm == "ppo":
        pytest.skip("only distillation has a camera")
    case = replace(
        TINY,
        algorithm=algorithm,
        gradient_length=gradient_length,
        rnn_type=rnn_type,
        rnn_num_layers=num_layers,
        done_rate=0.0,
        camera_period=camera_period,
    )
    rsl_rl = build(case, "rsl_rl")
    fill(rsl_rl, case, seed=0)
    # Without oneDNN torch writes the recurrence as products, which the counter sees.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with FlopCounterMode(display=False) as counter:
        rsl_rl.update()
    gates = {"lstm": 4, "gru": 3}[rnn_type] * case.rnn_hidden_dim
    # One tensor holds vectors and features: rsl_rl takes the gradient of the vectors with theirs.
    of_vectors = 2 * 8 * 6 * gates * OBS_DIM if camera_period else 0
    assert update_flops(case) == counter.get_total_flops() - of_vectors


def test_each_model_counts_with_its_own_sizes(monkeypatch):
    case = replace(
        TINY,
        algorithm="ppo",
        num_learning_epochs=2,
        rnn_num_layers=2,
        num_actions=5,
        obs_dims={"policy": 19, "critic": 42},
        obs_groups={"critic": ["critic"]},
        models={
            "actor": {"distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution"}},
            "critic": {"hidden_dims": [32]},
        },
        done_rate=0.0,
    )
    rsl_rl = build(case, "rsl_rl")
    fill(rsl_rl, case, seed=0)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with FlopCounterMode(display=False) as counter:
        rsl_rl.update()
    assert update_flops(case) == counter.get_total_flops()


def test_a_held_frame_counts_once_in_a_window():
    """By hand: 8 environments, phases 0 1 2 0 1 2 0 1; windows of 3 steps see 1 or 2 frames."""
    every, third = (replace(TINY, camera_period=p, gradient_length=3) for p in (1, 3))
    frames = [sum((n + t) % 3 == 0 or t % 3 == 0 for t in range(6) for n in range(8)), 6 * 8]
    per_frame = (update_flops(every) - update_flops(third)) / (frames[1] - frames[0])
    assert frames == [26, 48]
    convolutions = 2 * 25 * 16 * 22 * 30 + 3 * 16 * 9 * 32 * 140 + 3 * 32 * 9 * 32 * 24
    into_gates = 3 * (32 * 24) * (4 * 8)
    assert per_frame == 2 * (convolutions + into_gates)
