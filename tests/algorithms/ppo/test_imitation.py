"""PPO that imitates a teacher from the first update: gradient, memory, schedules, file, resume."""

import copy
import math
from typing import Any

import pytest
import torch
from support.fine_tuning import distilled
from support.helpers import make_model, parameters_of, roll_out, train
from support.imitation import forget, live, make_imitating, teacher_file
from support.inside import assert_same, through_a_file
from support.ppo_reference import (
    disturb,
    gradients_of_update,
    reference_gradient,
    whole_envs,
    windows,
)
from support.rank_processes import group, run_ranks
from support.tolerances import EXACT_FLOAT64

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
]

ONE_STEP: dict[str, Any] = {"num_mini_batches": 1, "num_learning_epochs": 1, "gradient_length": 2}
FALLING = {"teacher_coef_end": 0.2, "teacher_updates": 4}
SECOND = 0.65
"""The imitation's weight in the second update."""


def kl(actor, mean, std):
    """Return KL(teacher || actor) of diagonal Gaussians in closed form, shape (n,)."""
    ours, our_std = actor.output_mean, actor.output_std
    per_action = (our_std / std).log() + (std**2 + (mean - ours) ** 2) / (2 * our_std**2) - 0.5
    return per_action.sum(-1)


def mse(actor, mean, std):
    return (actor.output_mean - mean).square().mean(-1)


WINDOWS = {"minibatch_unit": "window", "num_micro_batches": 2}


@pytest.mark.parametrize(
    ("loss", "models", "teacher", "how"),
    [
        (kl, ("lstm", "lstm"), "lstm", {}),
        (mse, ("gru", "mlp"), "mlp", {"num_micro_batches": 3}),
        (kl, ("mlp", "mlp"), "gru", {"gradient_length": None}),
        (mse, ("lstm", "lstm"), "lstm", WINDOWS),
        (kl, ("cnn-lstm", "cnn-gru"), "cnn-gru", WINDOWS),
    ],
)
def test_the_gradient_is_that_of_ppo_plus_the_distance_from_the_teacher(
    loss, models, teacher, how, tmp_path
):
    """This is the second update, so that memory and schedule have to survive the first."""
    options = {**ONE_STEP, **FALLING, **how, "teacher_loss": loss.__name__}
    algorithm = make_imitating(teacher_file(tmp_path, teacher), teacher, models, **options)
    twin = make_model("teacher", teacher, 4, seed=7)
    live(algorithm, twin, 0)
    assert algorithm.update()["teacher_coef"] == 0.8
    states, said = live(algorithm, twin, 1)
    disturb(algorithm)
    by_window = "minibatch_unit" in how
    segments = windows(6, 4, 2) if by_window else whole_envs(6, 4, 2)

    def of_teacher(actor, t, env):
        mean, std = said[t]
        return SECOND * loss(actor, mean[env], std[env])

    expected = reference_gradient(algorithm, states, segments, of_teacher)
    without = reference_gradient(algorithm, states, segments)
    (gradient,) = gradients_of_update(algorithm)
    torch.testing.assert_close(gradient, expected, **EXACT_FLOAT64)
    assert (expected - without).norm() > 0.01


def test_a_teacher_keeps_its_memory_through_a_skipped_rollout(tmp_path):
    algorithm = make_imitating(teacher_file(tmp_path), **ONE_STEP, teacher_loss="mse")
    twin = make_model("teacher", "lstm", 4, seed=7)
    live(algorithm, twin, 0)
    algorithm.update()
    live(algorithm, twin, 1, on_step=lambda step, obs, rewards: rewards.fill_(math.inf))
    with pytest.warns(UserWarning, match="met NaN or inf in rewards"):
        assert algorithm.update() == {"skipped_updates": 1}
    _, said = live(algorithm, twin, 2)
    errors = algorithm.storage.distribution_params[0] - torch.stack([mean for mean, _ in said])
    assert algorithm.update()["teacher"] == pytest.approx(errors.square().mean().item(), rel=1e-9)


def coefs_of(algorithm, first, last, **how):
    return [train(algorithm, seed, **how)["teacher_coef"] for seed in range(first, last)]


@pytest.mark.parametrize(
    ("options", "coefs"),
    [
        ({}, [0.8, 0.8, 0.8]),
        ({"teacher_updates": 4}, [0.8, 0.6, 0.4, 0.2, 0, 0]),
        ({"teacher_updates": 4, "teacher_coef_end": 0.4}, [0.8, 0.7, 0.6, 0.5, 0.4, 0.4]),
    ],
)
def test_the_weight_falls_over_the_updates(options, coefs, tmp_path):
    algorithm = make_imitating(teacher_file(tmp_path), **options)
    assert coefs_of(algorithm, 0, len(coefs)) == pytest.approx(coefs)


def test_at_weight_zero_the_teacher_does_not_run(tmp_path, monkeypatch):
    algorithm = make_imitating(teacher_file(tmp_path), teacher_updates=1)
    assert coefs_of(algorithm, 0, 1) == [0.8]
    monkeypatch.setattr(algorithm.imitation.model, "forward", lambda *_, **__: pytest.fail("ran"))
    assert coefs_of(algorithm, 1, 2) == [0.0]


def test_a_resumed_run_continues_the_schedule_without_the_file(tmp_path):
    options = {"teacher_updates": 9, "teacher_coef_end": 0.1}
    source = make_imitating(teacher_file(tmp_path, "mlp"), "mlp", **options)
    coefs_of(source, 0, 3)
    checkpoint = through_a_file(source.save())
    checkpoint["rsl_tbptt"]["imitation"]["returns"] = [[1.0, 2.0]]  # of an earlier version
    forget(source)
    target = make_imitating(str(tmp_path / "gone.pt"), "mlp", **options)
    target.load(checkpoint, None, strict=True)
    assert coefs_of(target, 3, 6) == coefs_of(source, 3, 6)
    assert torch.equal(parameters_of(target), parameters_of(source))


@pytest.mark.parametrize(
    ("loaded", "file", "seed"),
    [
        (["student_state_dict", "teacher_state_dict"], "gone.pt", 8),
        (["student_state_dict"], "teacher.pt", 7),
        ([], "model_3.pt", 7),  # of a distillation
        ([], "latest", 7),
    ],
)
def test_the_teacher_is_that_of_the_student_or_of_the_file(loaded, file, seed, tmp_path):
    teacher_file(tmp_path)
    torch.save({**distilled(), "iter": 3}, tmp_path / "model_3.pt")
    algorithm, student = make_imitating(str(tmp_path / file)), distilled()
    student["teacher_state_dict"] = make_model("teacher", "lstm", 4, seed=8).state_dict()
    if loaded:
        algorithm.load({name: student[name] for name in loaded}, None, strict=True)
    roll_out(algorithm, 0)
    saved = algorithm.save()["rsl_tbptt"]["imitation"]["teacher_state_dict"]
    assert_same(saved, make_model("teacher", "lstm", 4, seed=seed).state_dict())


@pytest.mark.parametrize(
    ("make_file", "message"),
    [
        (lambda folder: str(folder / "no.pt"), "no.pt' does not exist"),
        (
            lambda folder: teacher_file(folder, obs_normalization=True),
            "set obs_normalization to True in the teacher's config",
        ),
        (lambda folder: None, "teacher_coef is 0.8 and teacher_checkpoint is None"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_the_first_step(make_file, message, tmp_path):
    algorithm = make_imitating(make_file(tmp_path))
    algorithm.set_teacher(teacher := make_model("teacher", "lstm", 4, seed=9))
    assert not teacher.training  # because dropout would change its actions
    before = copy.deepcopy(teacher.state_dict())
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            roll_out(algorithm, 0)
        assert algorithm.storage.step == 0
    assert_same(teacher.state_dict(), before)


def test_nan_in_the_teachers_answers_is_named_and_skipped(tmp_path):
    algorithm, calls = make_imitating(teacher_file(tmp_path)), []
    algorithm.set_teacher(teacher := make_model("teacher", "lstm", 4, seed=9))
    before = parameters_of(algorithm)

    def spoil(module, inputs, output):
        calls.append(0)
        return output.index_fill(0, torch.tensor([1]), math.nan) if len(calls) == 4 else output

    teacher.mlp.register_forward_hook(spoil)
    roll_out(algorithm, 0, 0.0)
    message = r"in the label 'teacher', part 0 of environments \[1\], first at step 3"
    with pytest.warns(UserWarning, match=message):
        algorithm.update()
    assert torch.equal(parameters_of(algorithm), before)
    assert train(algorithm, 1)["teacher_coef"] == 0.8


def run_rank(rank, path, folder):
    with group(rank, (4, 4), folder) as share:
        refused = make_imitating("gone.pt" if rank else path, multi_gpu_cfg=share.cfg)
        with pytest.raises(
            ValueError, match=r"On rank 1: The checkpoint 'gone\.pt' does not exist"
        ):
            roll_out(refused, 0)


@pytest.mark.long
def test_ranks_end_with_the_error_of_one(tmp_path):
    run_ranks(run_rank, (teacher_file(tmp_path), str(tmp_path)), 2)
