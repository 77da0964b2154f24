"""Checkpoints of rsl_rl 1 to 3, which hold one policy, give teachers and models to train on.

compat/rsl_rl3/test_checkpoints.py compares the names with those of a file of rsl_rl 3.1.2.
"""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from support.helpers import make_distillation, make_model, make_ppo, roll_out
from support.inside import assert_same
from support.older_checkpoints import as_policy

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

NORMALIZED = {"obs_normalization": True}
UNKNOWN = 100_000_000
"""Samples of a normaliser whose file lacks their number."""


def model_of(role, kind, seed):
    """Return a model with numbers of its own, in its normaliser too."""
    options: dict[str, Any] = {"output_dim": 1} if role == "critic" else {}
    if role in ("critic", "teacher"):
        options["distribution_cfg"] = None
    model: Any = make_model(role, kind, 4, seed=seed, **NORMALIZED, **options)
    model.obs_normalizer._mean.uniform_()
    model.obs_normalizer.count.fill_(7)
    return model


def models_of(kind, *roles):
    return {role: model_of(role, kind, 50 + seed) for seed, role in enumerate(roles)}


def reinforcing(kind):
    algorithm = make_ppo(TbpttPPO, 6, 4, kind, kind, NORMALIZED)
    return TbpttPPO(algorithm.actor, model_of("critic", kind, 8), algorithm.storage)


def distilling(kind, teacher="teacher", **options):
    options = {"gradient_length": 3, **options}
    built = make_distillation(TbpttDistillation, 6, 4, kind, kind, NORMALIZED, **options)
    return TbpttDistillation(built.student, model_of(teacher, kind, 9), built.storage, **options)


from_an_actor = partial(distilling, teacher="actor")


def check_loaded(algorithm, models, loaded):
    for role, source in loaded.items():
        found, expected = (dict(m.state_dict()) for m in (getattr(algorithm, role), models[source]))
        assert_same(found, expected)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "lstm", "gru"])
@pytest.mark.parametrize(
    ("build", "loaded"),
    [
        (reinforcing, {"actor": "actor", "critic": "critic"}),
        (reinforcing, {"actor": "student"}),
        (distilling, {"student": "student", "teacher": "teacher"}),
        (from_an_actor, {"teacher": "actor"}),
    ],
)
def test_models_of_a_policy_are_trained_on_or_teach(build, loaded, kind, separate):
    is_distilled = "student" in loaded.values()
    models = models_of(kind, *(("student", "teacher") if is_distilled else ("actor", "critic")))
    algorithm = build(kind)
    optimizer = copy.deepcopy(algorithm.optimizer.state_dict())
    assert algorithm.load(as_policy(models, separate=separate), None, strict=True) is False
    for model in models.values() if separate else ():
        model.obs_normalizer.count.fill_(UNKNOWN)
    check_loaded(algorithm, models, loaded)
    assert_same(algorithm.optimizer.state_dict(), optimizer)
    if build is reinforcing and is_distilled:
        assert algorithm.save()["rsl_tbptt"]["fine_tuning"] == {"num_updates": 0}


def test_one_model_of_a_policy_is_loaded_alone():
    models, algorithm = models_of("lstm", "actor", "critic"), reinforcing("lstm")
    before = {"actor": copy.deepcopy(algorithm.actor)}
    algorithm.load(as_policy(models), {"critic": True, "optimizer": True}, strict=True)
    check_loaded(algorithm, models, {"critic": "critic"})
    check_loaded(algorithm, before, {"actor": "actor"})


def test_a_file_with_an_actor_can_be_the_teachers(tmp_path):
    models = models_of("gru", "actor", "critic")
    torch.save(as_policy(models), tmp_path / "model.pt")
    algorithm = from_an_actor("gru", teacher_checkpoint=str(tmp_path / "model.pt"))
    roll_out(algorithm, 0)
    check_loaded(algorithm, models, {"teacher": "actor"})


@pytest.mark.parametrize("change", ["an estimator", "no critic"])
def test_another_policy_is_refused_by_its_names(change):
    checkpoint = as_policy(models_of("mlp", "actor", "critic"))
    policy = {**checkpoint["model_state_dict"], "estimator.0.weight": torch.ones(2)}
    if change == "no critic":
        policy = {k: v for k, v in checkpoint["model_state_dict"].items() if "critic" not in k}
    for algorithm in (reinforcing("mlp"), distilling("mlp")):
        with pytest.raises(ValueError, match=r"a policy with \[.*expected rsl_rl 1 to 3's"):
            algorithm.load({**checkpoint, "model_state_dict": policy}, None, strict=True)


def test_a_policy_of_other_sizes_is_refused_as_any_checkpoint():
    with pytest.raises(ValueError, match=r"'rnn\.rnn\.weight_ih_l0' has shape"):
        reinforcing("lstm").load(as_policy(models_of("gru", "actor", "critic")), None, strict=True)
