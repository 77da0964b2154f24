"""Weights are prepared for products once per optimiser step, for any number of windows."""

import pytest

from rsl_tbptt.core.scan import cpu
from scripts.benchmark.case import Case, build, fill


@pytest.fixture
def made(monkeypatch):
    """Collects the number of environments of each product that weights are prepared for."""
    made = []

    def counted(num_envs, *arguments, step_product=cpu.step_product):
        made.append(num_envs)
        return step_product(num_envs, *arguments)

    monkeypatch.setattr(cpu, "step_product", counted)
    return made


@pytest.mark.parametrize("gradient_length", [2, 6])
@pytest.mark.parametrize(("algorithm", "num_models"), [("ppo", 2), ("distillation", 1)])
def test_once_per_optimiser_step(made, algorithm, num_models, gradient_length):
    case = Case(
        algorithm=algorithm,
        num_envs=8,
        num_steps=6,
        gradient_length=gradient_length,
        rnn_hidden_dim=8,
        num_learning_epochs=1,
        num_mini_batches=2,
        settings={"scan_engine": "compiled"},
    )
    learner = build(case, "rsl_tbptt")
    fill(learner, case, seed=0)
    made.clear()
    learner.update()
    optimiser_steps = 2 if algorithm == "ppo" else 6 // gradient_length
    assert made == [8 // case.batches] * (2 * num_models * optimiser_steps)
