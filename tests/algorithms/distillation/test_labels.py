"""Labels that are computed at once after the rollout equal those of its steps."""

from typing import Any

import pytest
import torch
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from support.helpers import (
    ACTION_DIM,
    make_model,
    make_obs,
    parameters_of,
    roll_out,
    train,
)
from support.one_pass import ONE_PASS
from support.tolerances import PARITY_FLOAT32, SAME_FLOAT32

from rsl_tbptt.algorithms import TbpttDistillation, optimizers

NUM_STEPS, NUM_ENVS = 7, 4


class OwnForward(MLPModel):
    """A user's teacher, which runs step by step."""

    def forward(self, obs, *args, **kwargs):
        return super().forward(obs, *args, **kwargs) * 1.0


def make(teacher_class=MLPModel, **options):
    student = make_model("student", "lstm", NUM_ENVS, seed=1)
    teacher = make_model("teacher", "mlp", NUM_ENVS, seed=2, obs_normalization=True)
    normalizer: Any = teacher.obs_normalizer
    normalizer.update(3.0 * make_obs(NUM_ENVS)["state"] + 1.0)
    teacher.__class__ = teacher_class
    storage = RolloutStorage(
        "distillation", NUM_ENVS, NUM_STEPS, make_obs(NUM_ENVS), [ACTION_DIM], "cpu"
    )
    algorithm = TbpttDistillation(
        student, teacher, storage, gradient_length=3, **ONE_PASS, **options
    )
    algorithm.train_mode()
    return algorithm


@pytest.mark.parametrize(
    ("teacher_class", "loss_type", "max_rows"),
    [(MLPModel, "mse", 1), (OwnForward, "kl", 2 * NUM_ENVS), (MLPModel, "kl", 1000)],
)
def test_labels_and_updates_equal_those_of_the_steps(
    teacher_class, loss_type, max_rows, monkeypatch
):
    monkeypatch.setitem(optimizers._MAX_ROWS, "cpu", max_rows)
    batched, stepwise = (
        make(teacher_class, loss_type=loss_type, batch_teacher_labels=batch)
        for batch in (True, False)
    )
    with torch.no_grad():
        for algorithm in (batched, stepwise):
            algorithm.teacher.load_state_dict(stepwise.teacher.state_dict())
            std = algorithm.teacher.get_parameter("distribution.std_param")
            std.copy_(torch.tensor([0.7, 0.2]))
    for seed in range(3):
        metrics = [train(algorithm, seed) for algorithm in (batched, stepwise)]
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)
        labels = [algorithm.storage.privileged_actions for algorithm in (batched, stepwise)]
        torch.testing.assert_close(*labels, **SAME_FLOAT32)
        if loss_type == "kl":
            assert torch.equal(
                batched._labels.of_rollout()["std"], stepwise._labels.of_rollout()["std"]
            )
        torch.testing.assert_close(
            parameters_of(batched), parameters_of(stepwise), **PARITY_FLOAT32
        )


def test_the_teacher_runs_once_for_all_steps_and_is_left_as_it_was():
    algorithm, calls = make(batch_teacher_labels=True), []
    algorithm.teacher.mlp.register_forward_hook(lambda *call: calls.append(len(call[2])))
    before = {name: tensor.clone() for name, tensor in algorithm.teacher.state_dict().items()}
    roll_out(algorithm, 0)
    assert calls == []
    algorithm.update()
    assert calls == [NUM_STEPS * NUM_ENVS]
    assert all(torch.equal(v, before[k]) for k, v in algorithm.teacher.state_dict().items())
