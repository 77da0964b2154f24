"""The pull of a fine-tuned student towards its teacher: schedule, gradient, memory, refusals."""

import pytest
import torch
from support.fine_tuning import distilled, make_fine_tuned, make_pulled
from support.helpers import make_model, make_ppo, ppo_parameters_of, roll_out_ppo
from support.ppo_reference import gradient_of, gradients_of_update, roll_out_recording
from support.tolerances import EXACT_FLOAT64

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


def teacher_distributions(storage, teacher):
    """Run a twin of the teacher over a rollout as it happened; it keeps its state."""
    params = []
    for obs, dones in zip(storage.observations, storage.dones[..., 0], strict=True):
        teacher(obs, stochastic_output=True)
        params.append((teacher.output_mean.detach(), teacher.output_std.detach()))
        teacher.reset(dones)
    return params


def mean_kl_gradient(algorithm, states, teacher_params):
    """Return the actor's gradient of the mean KL(teacher || actor), in closed form, full BPTT."""
    actor, storage, total = algorithm.actor, algorithm.storage, 0.0
    live = actor.get_hidden_state()
    actor.reset(hidden_state=tuple(tensor.clone() for tensor in states[0][0]))
    algorithm.optimizer.zero_grad()
    for t, (mean, std) in enumerate(teacher_params):
        actor(storage.observations[t], stochastic_output=True)
        ours, our_std = actor.output_mean, actor.output_std
        per_action = (our_std / std).log() + (std**2 + (mean - ours) ** 2) / (2 * our_std**2) - 0.5
        total = total + per_action.sum()
        keep = (storage.dones[t] == 0).unsqueeze(0)
        h, c = actor.get_hidden_state()
        actor.reset(hidden_state=(h.where(keep, 0.0), c.where(keep, 0.0)))
    (total / storage.rewards.numel()).backward()
    actor.reset(hidden_state=live)
    return gradient_of(actor)


@pytest.mark.parametrize("teacher", ["mlp", "lstm", "gru"])
def test_the_pull_is_the_kl_divergence_from_what_the_teacher_said_as_it_happened(teacher):
    """Without advantages and entropy bonus nothing else moves the actor."""
    algorithm = make_fine_tuned(
        teacher, num_mini_batches=1, num_learning_epochs=1, entropy_coef=0.0, teacher_updates=4
    )
    twin = make_model("teacher", teacher, 4, seed=7)
    for update, coef in enumerate((0.8, 0.6)):
        states = roll_out_once(algorithm, update)
        algorithm.storage.advantages.zero_()
        params = teacher_distributions(algorithm.storage, twin)
        expected = coef * mean_kl_gradient(algorithm, states, params)
        (gradient,) = gradients_of_update(algorithm)
        torch.testing.assert_close(gradient[: len(expected)], expected, **EXACT_FLOAT64)
        assert expected.norm() > 0.01


def roll_out_once(algorithm, seed):
    states = []

    def record(step, obs, rewards):
        state = algorithm.actor.get_hidden_state()
        if state is None:
            state = (torch.zeros(1, 4, 6), torch.zeros(1, 4, 6))
        states.append((tuple(tensor.clone() for tensor in state),))

    roll_out_ppo(algorithm, seed, 0.3, on_step=record)
    return states


def test_the_pull_draws_the_actor_to_the_teacher():
    distances = []
    for coef in (1e-6, 10.0):
        algorithm = make_fine_tuned("mlp", teacher_coef=coef, learning_rate=3e-3)
        teacher = make_model("teacher", "mlp", 4, seed=7)
        for seed in range(3):
            roll_out_ppo(algorithm, seed)
            algorithm.update()
        algorithm.actor.reset()
        states = roll_out_recording(algorithm, 9, 0.0)
        assert states
        means = algorithm.storage.distribution_params[0]
        target = teacher(algorithm.storage.observations.flatten(0, 1)).unflatten(0, (6, 4))
        distances.append((means - target).square().mean().item())
    assert distances[1] < 0.5 * distances[0]


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher_coef": 0.5}, "teacher_coef is 0.5 and teacher_cfg is None, expected both"),
        ({"teacher_coef": -0.5}, "teacher_coef is -0.5, expected a positive number"),
        ({"teacher_updates": 0}, "teacher_updates is 0, expected an integer of at least 1"),
    ],
)
def test_options_of_the_pull_are_refused_by_name_and_value(options, message):
    with pytest.raises(ValueError, match=message):
        make_ppo(TbpttPPO, 6, 4, **options)


def test_a_schedule_without_a_pull_warns():
    with pytest.warns(UserWarning, match="teacher_updates is 3, which has no effect"):
        make_ppo(TbpttPPO, 6, 4, teacher_updates=3)
