"""The pull of a fine-tuned student towards its teacher: schedule, gradient, memory, refusals."""

import pytest
import torch
from support.fine_tuning import distilled, make_fine_tuned, make_pulled
from support.helpers import make_model, make_ppo, ppo_parameters_of, roll_out_ppo

from rsl_tbptt.algorithms import TbpttPPO

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
]


@pytest.mark.parametrize(
    ("warmup", "updates", "shares"),
    [
        (0, None, [1, 1, 1, 1, 1]),
        (2, None, [1, 1, 1, 1, 1]),
        (0, 4, [1, 0.75, 0.5, 0.25, 0, 0]),
        (2, 4, [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]),
        (0, 1, [1, 0, 0]),
    ],
)
def test_the_coefficient_is_held_through_the_warm_up_and_then_falls(warmup, updates, shares):
    algorithm = make_pulled(critic_warmup_iterations=warmup, teacher_updates=updates)
    algorithm.load(distilled(), None, strict=True)
    for share in shares:
        roll_out_ppo(algorithm, 0)
        assert algorithm.update()["teacher_coef"] == pytest.approx(0.8 * share)


def test_without_a_pull_the_teacher_is_not_asked(monkeypatch):
    algorithm = make_fine_tuned(teacher_updates=1)
    roll_out_ppo(algorithm, 0)
    algorithm.update()
    assert algorithm._imitation.params() == ()  # nothing is kept of the last rollout
    monkeypatch.setattr(algorithm._imitation, "_teacher", object())  # no model: a call fails
    monkeypatch.setattr(algorithm._imitation, "reset", lambda dones: None)
    roll_out_ppo(algorithm, 1)
    assert algorithm.update()["teacher_coef"] == 0


@pytest.mark.parametrize("teacher", ["mlp", "gru"])
def test_a_checkpoint_of_another_teacher_is_refused_and_changes_nothing(teacher):
    algorithm = make_pulled("lstm")
    before = ppo_parameters_of(algorithm)
    resumed = make_fine_tuned(teacher).save()
    for checkpoint in (distilled(teacher=teacher), resumed):
        with pytest.raises(ValueError, match=r"of the teacher: |for the teacher"):
            algorithm.load(checkpoint, None, strict=True)
        assert torch.equal(ppo_parameters_of(algorithm), before)
        assert algorithm.save()["rsl_tbptt"]["imitation"] == {}


def test_a_student_that_was_continued_without_its_teacher_cannot_be_trained_with_one():
    source, algorithm = make_ppo(TbpttPPO, 6, 4), make_pulled("lstm")
    source.load(distilled(), None, strict=True)
    for checkpoint in (source.save(), make_ppo(TbpttPPO, 6, 4).save()):
        algorithm.load(checkpoint, None, strict=True)  # may be played
        with pytest.raises(ValueError, match=r"is 0\.8 and teacher_checkpoint is None, expected"):
            roll_out_ppo(algorithm, 0)


@pytest.mark.parametrize("teacher", ["mlp", "lstm", "gru"])
def test_a_teacher_forgets_a_nan_with_the_rollout_that_brought_it(teacher):
    algorithm = make_fine_tuned(teacher)

    def poison(step, obs, rewards):
        if step == 3:
            obs["state"][1] = float("nan")

    roll_out_ppo(algorithm, 0, done_rate=0.0, on_step=poison)
    with pytest.warns(UserWarning, match=r"'state' of environments \[1\], first at step 3"):
        algorithm.update()
    roll_out_ppo(algorithm, 1, done_rate=0.0)
    assert algorithm.update()["teacher_coef"] == 0.8


def test_a_student_that_does_not_fit_leaves_the_teacher_alone():
    algorithm = make_pulled("mlp")
    with pytest.raises(ValueError, match="actor"):
        algorithm.load(distilled(student="gru", teacher="mlp"), None, strict=True)
    untrained = make_model("teacher", "mlp", 4, seed=9).state_dict()
    for name, value in algorithm._imitation._teacher.state_dict().items():
        assert torch.equal(value, untrained[name])


@pytest.mark.parametrize(
    ("cfg", "name"),
    [
        ({"class_name": "HeteroscedasticGaussianDistribution"}, "HeteroscedasticGaussianDist"),
        (None, "NoneType"),
    ],
)
def test_a_teacher_with_another_kind_of_distribution_is_refused(cfg, name):
    algorithm = make_pulled()
    teacher = make_model("teacher", "mlp", 4, seed=9, distribution_cfg=cfg)
    with pytest.raises(NotImplementedError, match=f"{name}.*, expected a GaussianDistribution"):
        algorithm.set_teacher(teacher)
