"""An update that runs out of memory is undone and made again with smaller micro-batches."""

import warnings
import weakref

import pytest
import torch
from support.helpers import make_distillation, roll_out
from support.safe_runs import make_runner

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.replay import Replay
from rsl_tbptt.algorithms.transaction import is_out_of_memory
from rsl_tbptt.checkpoints.reading import latest_checkpoint
from rsl_tbptt_tasks.memory import RecallEnv

NUM_ENVS = 32


@pytest.fixture
def memory(monkeypatch):
    """A device whose memory suffices for the environments of a micro-batch that the dict names."""
    limit = {"envs": NUM_ENVS}
    replay = Replay.__call__

    def limited(self, obs, state, starts, *cuts, **options):
        if torch.is_grad_enabled() and starts.shape[1] > limit["envs"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.\nMore.")
        return replay(self, obs, state, starts, *cuts, **options)

    monkeypatch.setattr(Replay, "__call__", limited)
    return limit


def make(folder, kind, **options):
    if kind == "distillation":
        options["buffer_rollouts"] = 0  # whose sequences come to the mini-batches
    env = RecallEnv(NUM_ENVS, 3)
    return make_runner(folder, kind, env=env, save_interval=100, algorithm=options)


def parameters(runner):
    models = [value for name, value in vars(runner.alg).items() if name.startswith("_raw_")]
    return [p.clone() for model in models for p in model.state_dict().values()]


@pytest.mark.parametrize("kind", ["distillation", "ppo"])
def test_the_update_is_made_again_with_twice_the_micro_batches(kind, memory, tmp_path):
    trained = []
    for num_micro_batches, limit in ((4, NUM_ENVS), (1, NUM_ENVS // 4)):
        torch.manual_seed(0)
        memory["envs"] = limit
        runner = make(
            None, kind, num_mini_batches=1, num_micro_batches=num_micro_batches, non_finite="raise"
        )
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            runner.learn(1)
        said = [str(each.message) for each in seen if "out of memory" in str(each.message)]
        numbers = [text.split(" micro-batches")[0].rsplit(" ", 1)[-1] for text in said]
        assert numbers == ([] if limit == NUM_ENVS else ["2", "4"])
        trained.append(parameters(runner))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runner.learn(1)  # goes on with them, and says nothing more
    if kind == "distillation":  # whose mini-batch of everything is not drawn
        for again, small in zip(*trained, strict=True):
            torch.testing.assert_close(again, small)


@pytest.mark.filterwarnings("ignore:The update ran out of memory")
@pytest.mark.parametrize("kind", ["distillation", "ppo"])
def test_where_one_environment_is_too_much_nothing_is_lost(kind, memory, tmp_path):
    runner = make(tmp_path, kind, num_mini_batches=2)
    runner.learn(2)
    before = parameters(runner)
    memory["envs"] = 0
    with pytest.raises(torch.OutOfMemoryError, match=r"16 micro-batches.*lower gradient_length"):
        runner.learn(2)
    for ours, kept in zip(parameters(runner), before, strict=True):
        assert torch.equal(ours, kept)
    assert latest_checkpoint(tmp_path).name == "model_1.pt"
    memory["envs"] = NUM_ENVS
    runner.learn(1)
    assert runner.num_iterations == 3


class Activation(torch.Tensor):
    """A tensor that only the frames of a failing update hold."""


def test_activations_are_freed_before_anything_else_is_done(monkeypatch):
    """What follows may need memory itself, and the rollout is dropped by models that take some."""
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


def test_what_cuda_says_itself_counts_and_other_errors_do_not():
    for text in (
        "CUDA error: out of memory",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling cublasLt",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ):
        assert is_out_of_memory(RuntimeError(text))
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    assert not is_out_of_memory(ValueError("CUDA error: out of memory"))
