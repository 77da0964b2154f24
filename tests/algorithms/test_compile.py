"""``torch_compile_mode`` of the runner's config compiles rollouts and keeps the training equal."""

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.helpers import (
    make_distillation,
    make_ppo,
    parameters_of,
    train,
)
from support.inside import through_a_file
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = [
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
    pytest.mark.skipif(not hasattr(Distillation, "compile"), reason="rsl_rl 5.0 does not compile"),
]


@pytest.fixture
def _traced(monkeypatch):
    """Make ``torch.compile`` run the traced models without a compiler, which saves seconds."""
    torch.compiler.reset()
    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: compile_model(model, backend="eager"))


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize(
    ("models", "options"),
    [
        ("lstm", {"loss_type": "kl"}),
        ("mlp", {}),
        ("cnn", {"auxiliary": {"state": {"target": "state"}}}),
        ("gru", None),
        ("cnn", None),
    ],
)
def test_compiled_models_learn_as_uncompiled_ones(models, options):
    results = []
    for mode in ("default", None):
        if options is None:
            algorithm = make_ppo(TbpttPPO, 6, 4, models, models, gradient_length=None)
        else:
            algorithm = make_distillation(
                TbpttDistillation, 6, 4, student=models, gradient_length=3, **options
            )
        algorithm.compile(mode)
        trained = algorithm.actor if options is None else algorithm.student
        assert (trained is algorithm.get_policy()) == (mode is None)
        train(algorithm, 0, 1)
        results.append((parameters_of(algorithm), algorithm.storage.actions.clone()))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, **PARITY_FLOAT32)


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("build", [make_distillation, make_ppo])
def test_checkpoints_of_compiled_models_have_plain_keys(build):
    algorithm_class = TbpttDistillation if build is make_distillation else TbpttPPO
    compiled, plain = (build(algorithm_class, 6, 4, gradient_length=3) for _ in range(2))
    compiled.compile("default")
    train(compiled, 0, 1)
    checkpoint = through_a_file(compiled.save())
    for key, state_dict in plain.save().items():
        if key.endswith("_state_dict"):
            assert checkpoint[key].keys() == state_dict.keys(), key
    assert plain.load(checkpoint, None, strict=True) is True
    assert compiled.load(checkpoint, None, strict=True) is True


def test_modes_with_cuda_graphs_are_refused_with_the_reason():
    algorithm = make_distillation(TbpttDistillation, 6, 4, gradient_length=3)
    with pytest.raises(ValueError, match="CUDA graphs which are incompatible"):
        algorithm.compile("reduce-overhead")
