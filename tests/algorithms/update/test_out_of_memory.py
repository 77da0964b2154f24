"""An update that runs out of memory is undone and repeated with smaller micro-batches."""

import warnings
import weakref
from typing import Any

import pytest
import torch
from support.cases import CASES, EXPECTED_WARNINGS
from support.helpers import make_distillation, make_ppo, roll_out, train
from support.inside import assert_same, everything, saved

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.replay import Replay
from rsl_tbptt.algorithms.undo import is_out_of_memory

pytestmark = EXPECTED_WARNINGS

NUM_ENVS = 32


@pytest.fixture
def memory(monkeypatch):
    """A device with memory for micro-batches of as many environments as the dict says."""
    limit = {"envs": NUM_ENVS}
    replay = Replay.__call__

    def limited(self, obs, state, starts, *cuts, **options):
        if torch.is_grad_enabled() and starts.shape[1] > limit["envs"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.\nMore.")
        return replay(self, obs, state, starts, *cuts, **options)

    monkeypatch.setattr(Replay, "__call__", limited)
    return limit


@pytest.mark.filterwarnings("ignore:The update ran out of memory and is made again with")
@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("name", sorted({*CASES} - {"ppo-chunks"}))  # whose parts are smallest
def test_the_update_is_repeated_with_twice_the_micro_batches(name, monkeypatch):
    case = CASES[name]
    repeated = case.build()
    case.fill(repeated, 0)
    conclude, failures = repeated.conclude, ["CUDA out of memory."]

    def limited(*arguments, **options):
        results = conclude(*arguments, **options)
        if failures:
            raise torch.OutOfMemoryError(failures.pop())
        return results

    before = repeated.transaction.num_micro_batches
    monkeypatch.setattr(repeated, "conclude", limited)
    metrics = repeated.update()
    num_micro_batches = repeated.transaction.num_micro_batches
    assert before < num_micro_batches <= 2 * before
    small = case.build(num_micro_batches=num_micro_batches)
    case.fill(small, 0)
    assert_same(metrics, small.update())
    assert_same(saved(repeated), saved(small))


@pytest.mark.parametrize("kind", ["distillation", "ppo"])
def test_micro_batches_are_made_smaller_until_they_fit_or_nothing_is_lost(kind, memory):
    options: Any = {"gradient_length": 2, "num_mini_batches": 1}
    if kind == "ppo":
        algorithm = make_ppo(TbpttPPO, 4, NUM_ENVS, **options)
    else:
        algorithm = make_distillation(TbpttDistillation, 4, NUM_ENVS, **options)
    for envs, expected in ((NUM_ENVS // 4, ["2", "4"]), (0, ["8", "16", "32"])):
        memory["envs"] = envs
        roll_out(algorithm, 0)
        before = everything(algorithm)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if envs > 0:
                algorithm.update()
            else:
                with pytest.raises(torch.OutOfMemoryError, match=r"32 micro-.*lower gradient_leng"):
                    algorithm.update()
                assert_same(everything(algorithm), before)
        said = [str(each.message) for each in seen if "out of memory" in str(each.message)]
        assert [text.split(" micro-batches")[0].rsplit(" ", 1)[-1] for text in said] == expected
    memory["envs"] = NUM_ENVS
    train(algorithm, 1)  # continues with them, without another message


class Activation(torch.Tensor):
    """A tensor that is referenced only by the frames of a failing update."""


def test_activations_are_freed_before_anything_else_is_done(monkeypatch):
    """The next steps need memory too: the models that drop the rollout allocate some."""
    held, seen = [], []

    def loss(actions, labels):
        if armed:
            activation = actions.detach().clone().as_subclass(Activation)
            held.append(weakref.ref(activation))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return (actions - labels).square()

    armed = False
    algorithm = make_distillation(TbpttDistillation, 4, 3, gradient_length=2, loss_type=loss)
    roll_out(algorithm, 0)
    reset = algorithm.student.reset

    def watched(*args, **kwargs):
        seen.append(held[0]() is None)
        reset(*args, **kwargs)

    monkeypatch.setattr(algorithm.student, "reset", watched)
    armed = True
    with (
        pytest.warns(UserWarning, match="ran out of memory"),
        pytest.raises(torch.OutOfMemoryError),
    ):
        algorithm.update()
    assert seen[0]


def test_cudas_own_error_counts_and_other_errors_do_not():
    assert is_out_of_memory(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasLt"))
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    assert not is_out_of_memory(ValueError("CUDA error: out of memory"))
