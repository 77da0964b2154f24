"""``torch_compile_mode`` of the runner's config compiles rollouts and keeps the training equal."""

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.cases import CASES, EXPECTED_WARNINGS
from support.inside import assert_same, everything, through_a_file
from support.tolerances import PARITY_FLOAT32
from torch.utils._pytree import tree_leaves

pytestmark = [
    *EXPECTED_WARNINGS,
    pytest.mark.skipif(not hasattr(Distillation, "compile"), reason="rsl_rl 5.0 does not compile"),
]

COMPILED = [
    "distillation-kl",
    "distillation-student-mlp",
    "distillation-student-cnn",
    "distillation-bce-heads",
    "ppo-models-gru",
    "ppo-models-cnn",
]


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_models_learn_as_uncompiled_ones_and_their_checkpoints_are_plain(
    name, monkeypatch
):
    torch.compiler.reset()
    compile_model = torch.compile  # runs the traced models without a compiler, which saves seconds
    monkeypatch.setattr(torch, "compile", lambda model, mode: compile_model(model, backend="eager"))
    case, trained = CASES[name], []
    for mode in ("default", None):
        algorithm = case.build()
        algorithm.compile(mode)
        acts = algorithm.actor if "ppo" in name else algorithm.student
        assert (acts is algorithm.get_policy()) == (mode is None)
        for seed in range(2):
            case.fill(algorithm, seed)
            algorithm.update()
        trained.append(algorithm)
    compiled, plain = trained
    numbers = [tree_leaves((everything(each), each.storage.actions)) for each in trained]
    torch.testing.assert_close(*numbers, **PARITY_FLOAT32)
    checkpoint = through_a_file(compiled.save())
    for algorithm in (plain, compiled):
        assert algorithm.load(checkpoint, None, strict=True) is True
        assert_same(algorithm.save()["optimizer_state_dict"], checkpoint["optimizer_state_dict"])


def test_modes_with_cuda_graphs_are_refused_with_the_reason():
    algorithm = CASES["distillation-student-lstm"].build()
    with pytest.raises(ValueError, match="CUDA graphs which are incompatible"):
        algorithm.compile("reduce-overhead")
