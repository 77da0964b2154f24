"""Constructors show their arguments to ``help()`` and to type checkers (typed_constructors)."""

import dataclasses
import inspect
import typing

import pytest
from support import typed_constructors as typed
from support.helpers import make_distillation, make_ppo

from rsl_tbptt import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions


@pytest.mark.parametrize(
    ("algorithm", "options", "models"),
    [
        (TbpttDistillation, DistillationOptions, ["student", "teacher"]),
        (TbpttPPO, PpoOptions, ["actor", "critic"]),
    ],
)
def test_the_signature_lists_models_options_and_the_runners_arguments(algorithm, options, models):
    parameters = inspect.signature(algorithm).parameters
    assert list(parameters)[:3] == [*models, "storage"]
    names = {field.name for field in dataclasses.fields(options)}
    of_runners = {"device", "multi_gpu_cfg", "rnd_cfg", "symmetry_cfg"}
    assert set(list(parameters)[3:]) == names | of_runners
    types = typing.get_type_hints(options)
    for name in names:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == getattr(options(), name)
        assert parameters[name].annotation == types[name]  # no checks, which readers do not need
    assert str(inspect.signature(algorithm.__init__)).startswith(f"(self, {models[0]}: ")


@pytest.fixture
def ppo():
    algorithm = make_ppo(TbpttPPO, 6, 4)
    return algorithm.actor, algorithm.critic, algorithm.storage


@pytest.fixture
def distillation():
    algorithm = make_distillation(TbpttDistillation, 6, 4, gradient_length=3)
    return algorithm.student, algorithm.teacher, algorithm.storage


def test_calls_that_a_type_checker_accepts_run(ppo, distillation):
    assert typed.right_ppo(ppo).options.gamma == 0.9
    assert typed.right_distillation(distillation).options.tail == "drop"


def test_calls_that_a_type_checker_refuses_are_refused(ppo, distillation):
    with pytest.raises(ValueError, match="did you mean 'gradient_length'"):
        typed.misspelt_ppo(ppo)
    with pytest.raises(ValueError, match="did you mean 'gradient_length'"):
        typed.misspelt_distillation(distillation)
    with pytest.raises(ValueError, match="tail is 'keep', expected 'flush' or 'drop'"):
        typed.wrong_choice(distillation)
    with pytest.raises(ValueError, match=r"num_mini_batches is 2\.5, expected an integer"):
        typed.wrong_type(ppo)
