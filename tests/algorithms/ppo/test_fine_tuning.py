"""PPO that continues a distilled student: its noise, the critic's warm-up, checkpoints."""

import copy
import inspect
from typing import Any

import pytest
import torch
from support.fine_tuning import distilled, make_fine_tuned, make_pulled
from support.helpers import make_model, make_ppo, parameters_of, roll_out, train
from torch.nn.utils import parameters_to_vector

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.compat.versions import GaussianDistribution

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def test_options_for_a_student_warn_once_if_training_starts_without_one(tmp_path):
    options = {"student_action_std": 0.3, "critic_warmup_iterations": 2}
    scratch = make_ppo(TbpttPPO, 6, 4, **options)
    message = (
        r"student_action_std is 0\.3 and critic_warmup_iterations is 2, which has no effect"
        " .*--checkpoint FILE"
    )
    with pytest.warns(UserWarning, match=message):
        roll_out(scratch, 0)
    scratch.update()
    roll_out(scratch, 1)
    checkpoint = distilled()
    for _ in ("begun", "resumed"):
        started = make_ppo(TbpttPPO, 6, 4, **options)
        started.load(checkpoint, None, strict=True)
        checkpoint = started.save()
        roll_out(started, 0)


@pytest.mark.parametrize("std_type", ["scalar", "log"])
def test_a_distilled_student_becomes_the_actor_while_the_critic_warms_up(std_type, capsys):
    distribution = {"class_name": "GaussianDistribution", "init_std": 0.3, "std_type": std_type}
    kwargs = {"obs_normalization": True, "distribution_cfg": distribution}
    student = make_model("actor", "lstm", 4, seed=5, **kwargs)
    student.get_buffer("obs_normalizer._mean").fill_(0.5)
    options = {"student_action_std": 0.7, "critic_warmup_iterations": 2}
    algorithm = make_ppo(TbpttPPO, 6, 4, "lstm", "mlp", kwargs, **options)
    actor, critic = algorithm.actor, algorithm.critic
    checkpoint = {"student_state_dict": student.state_dict(), "teacher_state_dict": {}}
    assert algorithm.load(checkpoint, None, strict=True) is False
    (line,) = capsys.readouterr().out.splitlines()
    for words in ("student is the actor now", "noise: 0.7 (", "alone: 2 (", "teacher: none ("):
        assert words in line
    for name, value in actor.state_dict().items():
        if name.startswith("distribution"):
            assert torch.allclose(value.exp() if std_type == "log" else value, torch.tensor(0.7))
        else:
            assert torch.equal(value, student.state_dict()[name]), name
    for held in (True, True, False):
        actor_before = copy.deepcopy(actor.state_dict())
        critic_before = parameters_to_vector(critic.parameters()).clone()
        rate = algorithm.learning_rate
        train(algorithm, 0)
        for name, value in actor.state_dict().items():  # weights and normaliser alike
            assert torch.equal(actor_before[name], value) == held, name
        assert (algorithm.learning_rate == rate) == held
        assert not torch.equal(critic_before, parameters_to_vector(critic.parameters()))


def test_no_gradient_of_a_frozen_actor_is_computed():
    algorithm, computed = make_fine_tuned(critic_warmup_iterations=1), []
    for parameter in algorithm.actor.parameters():
        parameter.register_hook(computed.append)
    train(algorithm, 0)
    assert not computed
    train(algorithm, 1)
    assert computed


HETEROSCEDASTIC = {"distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution"}}


def test_an_action_noise_that_is_not_a_parameter_is_refused():
    options: dict[str, Any] = {"actor_kwargs": HETEROSCEDASTIC}
    with pytest.raises(NotImplementedError, match="HeteroscedasticGaussianDistribution has no"):
        make_ppo(TbpttPPO, 6, 4, **options, student_action_std=0.5)
    make_ppo(TbpttPPO, 6, 4, **options)


def go_on(algorithm, first, last):
    """Take updates [first, last); return their coefficients of kickstarting."""
    return [train(algorithm, seed)["teacher_coef"] for seed in range(first, last)]


def standing_of(algorithm):
    """Return the position in the schedules and the teacher."""
    own = algorithm.save()["rsl_tbptt"]
    teacher = own["imitation"]["teacher_state_dict"]
    return {
        "warm-up": own["fine_tuning"],
        "teacher's updates": own["imitation"]["num_updates"],
        "teacher": torch.cat([value.flatten() for value in teacher.values()]).tolist(),
    }


@pytest.mark.parametrize(
    ("load_cfg", "taken_over"),
    [
        ({"critic": True}, set()),
        ({"optimizer": True}, set()),
        ({"critic": True, "actor": True}, {"warm-up", "teacher's updates", "teacher"}),
        (None, {"warm-up", "teacher's updates", "teacher"}),
    ],
)
def test_a_checkpoint_changes_only_what_is_requested(load_cfg, taken_over):
    options: dict[str, Any] = {"critic_warmup_iterations": 1}
    other, checkpoint = make_pulled(**options), distilled()
    checkpoint["teacher_state_dict"] = make_model("teacher", "lstm", 4, seed=8).state_dict()
    other.load(checkpoint, None, strict=True)
    go_on(other, 0, 3)
    algorithm = make_fine_tuned(**options)
    before, theirs = standing_of(algorithm), standing_of(other)
    assert all(before[name] != value for name, value in theirs.items())
    algorithm.load(other.save(), load_cfg, strict=True)
    after = standing_of(algorithm)
    for name, value in after.items():
        assert value == (theirs if name in taken_over else before)[name], name


@pytest.mark.parametrize(
    ("warmup", "updates", "shares"), [(2, None, [1, 1, 1, 1]), (1, 2, [1, 1, 0.5, 0, 0])]
)
def test_the_weight_is_constant_in_the_warm_up_and_then_falls(warmup, updates, shares):
    algorithm = make_fine_tuned(critic_warmup_iterations=warmup, teacher_updates=updates)
    assert go_on(algorithm, 0, len(shares)) == pytest.approx([0.8 * share for share in shares])


OTHER_TEACHER = r"of the teacher: |for the teacher"


@pytest.mark.parametrize(
    ("checkpoint", "load_cfg", "message"),
    [
        (lambda: distilled(teacher="gru"), None, OTHER_TEACHER),
        (lambda: make_fine_tuned("gru").save(), None, OTHER_TEACHER),
        (lambda: distilled(student="gru"), None, "actor"),
        (distilled, {"critic": True}, "lacks 'critic_state_dict', it holds"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(
    checkpoint, load_cfg, message
):
    algorithm = make_pulled("lstm")
    before = parameters_of(algorithm)
    with pytest.raises(ValueError, match=message):
        algorithm.load(checkpoint(), load_cfg, strict=True)
    assert torch.equal(parameters_of(algorithm), before)
    assert "imitation" not in algorithm.save()["rsl_tbptt"]


@pytest.mark.parametrize("cfg", [HETEROSCEDASTIC, {"distribution_cfg": None}])
def test_a_teacher_with_another_kind_of_distribution_is_refused(cfg):
    teacher = make_model("teacher", "mlp", 4, seed=9, **cfg)
    with pytest.raises(NotImplementedError, match="expected a GaussianDistribution"):
        make_pulled().set_teacher(teacher)


@pytest.mark.skipif(
    "std_range" not in inspect.signature(GaussianDistribution.__init__).parameters,
    reason="rsl_rl 5.0 clamps no deviation",
)
def test_a_noise_that_the_actor_cannot_have_is_refused():
    cfg = {"class_name": "GaussianDistribution", "init_std": 0.3, "std_range": (0.1, 2.0)}
    actor: dict[str, Any] = {"distribution_cfg": cfg}
    for std in (0.05, 3.0):
        message = rf"student_action_std is {std}, expected 0\.1 to 2, the std_range of the actor"
        with pytest.raises(ValueError, match=message):
            make_ppo(TbpttPPO, 6, 4, "mlp", "mlp", actor_kwargs=actor, student_action_std=std)
    make_ppo(TbpttPPO, 6, 4, "mlp", "mlp", actor_kwargs=actor, student_action_std=0.5)
