"""Labels that are computed at once after the rollout equal those of its steps."""

import pytest
import torch
from rsl_rl.models import MLPModel
from support.helpers import (
    make_distillation,
    parameters_of,
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


def make(teacher_class, **options):
    plain = make_distillation(TbpttDistillation, NUM_STEPS, NUM_ENVS, gradient_length=3)
    plain.teacher.__class__ = teacher_class
    plain.teacher.distribution.std_param.data.copy_(torch.tensor([0.7, 0.2]))
    models = (plain.student, plain.teacher)
    algorithm = TbpttDistillation(*models, plain.storage, gradient_length=3, **ONE_PASS, **options)
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


def test_a_nan_in_the_teachers_observations_is_named_and_undone():
    algorithm = make(MLPModel, batch_teacher_labels=True)
    before = parameters_of(algorithm)
    with pytest.warns(UserWarning, match=r"'state' of environments \[1\], first at step 2"):
        train(
            algorithm, 0, on_step=lambda step, obs: step == 2 and obs["state"][1].fill_(torch.nan)
        )
    assert torch.equal(parameters_of(algorithm), before)
