"""With ``loss_reduction="sum", tail="drop"`` an update leaves rsl_rl's parameters."""

import inspect
import warnings
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.helpers import (
    MEMORIES,
    MEMORIES_THAT_SEE,
    MODELS,
    make_distillation,
    parameters_of,
    roll_out,
)
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttDistillation

UPDATES = 3

NORMALISES_AFTER_UPDATE = "observations.flatten" in inspect.getsource(Distillation.update)
"""rsl_rl 5.5 updates the normaliser after an update, as we do with every version. Older ones update
it at every step, so their replay has other normalised inputs than the rollout."""


def train(algorithm_class, updates=UPDATES, **kwargs):
    """Return the parameters after some updates, the last loss, and the hidden state after them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not divisible by 'gradient_length'")
        algorithm = make_distillation(algorithm_class, **kwargs)
    for seed in range(updates):
        roll_out(algorithm, seed)
        metrics = algorithm.update()
    return parameters_of(algorithm), metrics["behavior"], algorithm.student.get_hidden_state()


@pytest.mark.parametrize("student", [*dict.fromkeys([*MODELS, *MEMORIES, *MEMORIES_THAT_SEE])])
@pytest.mark.parametrize(
    ("num_steps", "num_learning_epochs", "options"),
    [(12, 2, {}), (12, 1, {"loss_type": "huber", "optimizer": "sgd"}), (14, 1, {})],
)
def test_parameters_equal_rsl_rl(student, num_steps, num_learning_epochs, options):
    normalises = num_steps == 14 and NORMALISES_AFTER_UPDATE
    shared: dict[str, Any] = {
        "num_steps": num_steps,
        "num_envs": 5,
        "student": student,
        "student_kwargs": {"obs_normalization": student != "images" and normalises},
        "num_learning_epochs": num_learning_epochs,
        "gradient_length": 4,
        "max_grad_norm": 0.5,
        **options,
    }
    expected, expected_loss, expected_state = train(Distillation, **shared)
    parameters, loss, state = train(TbpttDistillation, **shared, loss_reduction="sum", tail="drop")
    torch.testing.assert_close(parameters, expected, **PARITY_FLOAT32)
    if num_steps % 4 == 0:  # rsl_rl's loss counts dropped steps, which are not trained on
        assert loss == pytest.approx(expected_loss, rel=1e-4)
    if student in (*MEMORIES, *MEMORIES_THAT_SEE):
        for got, want in zip(state, expected_state, strict=True):
            torch.testing.assert_close(got, want, **PARITY_FLOAT32)


@pytest.mark.parametrize("teacher", MODELS)
def test_every_teacher_of_rsl_rl_gives_the_same_labels(teacher):
    shared: dict[str, Any] = {"num_steps": 8, "num_envs": 4, "gradient_length": 4}
    # rsl_rl's update clears the state of a recurrent teacher, which then gives other labels.
    shared["updates"] = 1 if teacher in ("lstm", "gru") else UPDATES
    shared |= {"teacher": teacher, "max_grad_norm": 0.5}
    expected, _, _ = train(Distillation, **shared)
    parameters, _, _ = train(TbpttDistillation, **shared, loss_reduction="sum", tail="drop")
    torch.testing.assert_close(parameters, expected, **PARITY_FLOAT32)
