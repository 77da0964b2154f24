"""The operations of an update's matrix products are counted right."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rsl_tbptt.bench.case import Case, build, fill
from rsl_tbptt.bench.limit import update_flops

TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("algorithm", "gradient_length"), [("distillation", 6), ("distillation", 3), ("ppo", 6)]
)
def test_operations_are_those_of_rsl_rls_update(
    algorithm, gradient_length, rnn_type, num_layers, monkeypatch
):
    case = replace(
        TINY,
        algorithm=algorithm,
        gradient_length=gradient_length,
        rnn_type=rnn_type,
        rnn_num_layers=num_layers,
        done_rate=0.0,
    )
    rsl_rl = build(case, "rsl_rl")
    fill(rsl_rl, case, seed=0)
    # Without oneDNN torch writes the recurrence as products, which the counter sees.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with FlopCounterMode(display=False) as counter:
        rsl_rl.update()
    assert update_flops(case) == counter.get_total_flops()
