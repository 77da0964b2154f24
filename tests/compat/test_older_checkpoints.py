"""Checkpoints of rsl_rl 1 to 3, which hold one policy, give teachers and models to train on.

compat/rsl_rl3/test_checkpoints.py compares the names with those of a file of rsl_rl 3.1.2.
"""

from typing import Any

import pytest
import torch
from support.helpers import make_distillation, make_model, make_ppo, roll_out
from support.inside import assert_same
from support.older_checkpoints import as_policy

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

NORMALIZED = {"obs_normalization": True}
KINDS = ["mlp", "lstm", "gru"]


def trained(kind, *roles):
    """Return models that are not as those that ``make_ppo`` and ``make_distillation`` build."""
    models = {}
    for seed, role in enumerate(roles):
        options: dict[str, Any] = {"output_dim": 1} if role == "critic" else {}
        if role in ("critic", "teacher"):
            options["distribution_cfg"] = None
        model: Any = make_model(role, kind, 4, seed=50 + seed, **NORMALIZED, **options)
        model.obs_normalizer._mean.uniform_()
        model.obs_normalizer.count.fill_(7)
        models[role] = model
    return models


def reinforcing(kind, **options):
    algorithm = make_ppo(TbpttPPO, 6, 4, kind, kind, NORMALIZED, **options)
    critic = trained(kind, "critic")["critic"]
    critic.load_state_dict({name: value + 1 for name, value in critic.state_dict().items()})
    return TbpttPPO(algorithm.actor, critic, algorithm.storage, **options)


def distilling_with(teacher, kind, **options):
    options = {"gradient_length": 3, **options}
    built = make_distillation(TbpttDistillation, 6, 4, kind, kind, NORMALIZED, **options)
    return TbpttDistillation(built.student, teacher, built.storage, **options)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_of_ppo_can_be_trained_on(kind, separate):
    models = trained(kind, "actor", "critic")
    algorithm = reinforcing(kind)
    optimizer = algorithm.optimizer.state_dict()
    assert algorithm.load(as_policy(models, separate=separate), None, strict=True) is False
    assert_same(dict(algorithm.actor.state_dict()), dict(models["actor"].state_dict()))
    assert_same(dict(algorithm.critic.state_dict()), dict(models["critic"].state_dict()))
    assert_same(algorithm.optimizer.state_dict(), optimizer)
    only_critic = reinforcing(kind)
    before = {name: value.clone() for name, value in only_critic.actor.state_dict().items()}
    only_critic.load(as_policy(models), {"critic": True, "optimizer": True}, strict=True)
    assert_same(dict(only_critic.actor.state_dict()), before)
    assert_same(dict(only_critic.critic.state_dict()), dict(models["critic"].state_dict()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_distilled_student_can_be_trained_on(kind):
    models = trained(kind, "student", "teacher")
    checkpoint = as_policy(models)
    student = dict(models["student"].state_dict())
    algorithm = reinforcing(kind)
    assert algorithm.load(checkpoint, None, strict=True) is False
    assert_same(dict(algorithm.actor.state_dict()), student)
    assert algorithm.save()["rsl_tbptt"]["fine_tuning"] == {"num_updates": 0}
    teacher = make_model("teacher", kind, 4, seed=3, distribution_cfg=None, **NORMALIZED)
    distilling = distilling_with(teacher, kind)
    assert distilling.load(checkpoint, None, strict=True) is False
    assert_same(dict(distilling.student.state_dict()), student)
    assert_same(dict(distilling.teacher.state_dict()), dict(models["teacher"].state_dict()))


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["load", "teacher_checkpoint"])
def test_an_actor_can_be_the_teacher(kind, way, separate, tmp_path):
    models = trained(kind, "actor", "critic")
    checkpoint, path = as_policy(models, separate=separate), tmp_path / "model.pt"
    torch.save(checkpoint, path)
    named = {"teacher_checkpoint": str(path)} if way == "teacher_checkpoint" else {}
    teacher = make_model("actor", kind, 4, seed=3, **NORMALIZED)
    algorithm = distilling_with(teacher, kind, **named)
    if way == "load":
        assert algorithm.load(checkpoint, None, strict=True) is False
    roll_out(algorithm, 0)
    assert_same(dict(algorithm.teacher.state_dict()), dict(models["actor"].state_dict()))


@pytest.mark.parametrize("change", [{"estimator.0.weight": torch.ones(2)}, {"critic": None}])
def test_another_policy_is_refused_by_its_names(change):
    checkpoint = as_policy(trained("mlp", "actor", "critic"))
    policy = checkpoint["model_state_dict"]
    for name, value in change.items():
        if value is None:
            for key in [key for key in policy if key.startswith(name)]:
                del policy[key]
        else:
            policy[name] = value
    for algorithm in (
        reinforcing("mlp"),
        distilling_with(make_model("teacher", "mlp", 4, 1), "mlp"),
    ):
        with pytest.raises(ValueError, match=r"a policy with \[.*expected rsl_rl 1 to 3's"):
            algorithm.load(checkpoint, None, strict=True)


def test_a_policy_of_other_sizes_is_refused_as_any_checkpoint():
    algorithm = reinforcing("lstm")
    with pytest.raises(ValueError, match=r"'rnn\.rnn\.weight_ih_l0' has shape"):
        algorithm.load(as_policy(trained("gru", "actor", "critic")), None, strict=True)
