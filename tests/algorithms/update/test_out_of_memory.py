"""An update that runs out of memory is undone, and names the budget that would have done."""

import re
import weakref

import pytest
import torch
from support.helpers import make_distillation, roll_out
from support.safe_runs import make_runner

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.update import out_of_memory
from rsl_tbptt.algorithms.update import session as session_module
from rsl_tbptt.algorithms.update.out_of_memory import explain
from rsl_tbptt.algorithms.update.trained_model import TrainedModel
from rsl_tbptt.checkpoints.latest import latest_checkpoint
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt_tasks.memory import RecallEnv

NUM_ENVS = 32


@pytest.fixture
def memory(monkeypatch):
    """A device whose memory suffices for the environments of a micro-batch that the dict names."""
    limit = {"envs": NUM_ENVS}
    make = TrainedModel.__init__

    def patched(self, *args, **kwargs):
        make(self, *args, **kwargs)
        replay = self._replay

        def limited(obs, state, starts, **cuts):
            if torch.is_grad_enabled() and starts.shape[1] > limit["envs"]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.\nMore.")
            return replay(obs, state, starts, **cuts)

        self._replay = limited

    monkeypatch.setattr(TrainedModel, "__init__", patched)
    return limit


def make(folder, kind, **options):
    env = RecallEnv(NUM_ENVS, 3)
    runner = make_runner(folder, kind, env=env, save_interval=100, algorithm=options)
    return runner


def parameters(runner):
    models = [value for name, value in vars(runner.alg).items() if name.startswith("_raw_")]
    return [p.clone() for model in models for p in model.state_dict().values()]


@pytest.mark.parametrize("kind", ["distillation", "ppo"])
def test_the_budget_that_is_named_fits_and_nothing_is_lost(kind, memory, tmp_path):
    mini_batches = 1 if kind == "distillation" else 2
    options = {"num_mini_batches": mini_batches}
    if kind == "distillation":
        options["memory_rollouts"] = 0  # whose sequences come to the mini-batches
    runner = make(tmp_path, kind, **options)
    runner.learn(2)
    before = parameters(runner)
    memory["envs"] = NUM_ENVS // mini_batches // 2
    with pytest.raises(torch.OutOfMemoryError) as raised:
        runner.learn(2)
    text = str(raised.value)
    assert "\n" not in text
    expected = (
        r"^memory_budget_gb is None, expected at most ([\d.e-]+): the update ran out of memory"
        r" \(CUDA out of memory\. Tried to allocate 20 MiB\.\) and was undone\. It takes about"
        r" ([\d.e-]+) GB, and with that budget 2 micro-batches \(num_micro_batches stays 1\)\.$"
    )
    found = re.match(expected, text)
    assert found, text
    budget, takes = map(float, found.groups())
    assert budget < takes
    for ours, kept in zip(parameters(runner), before, strict=True):
        assert torch.equal(ours, kept)
    assert latest_checkpoint(tmp_path).name == "model_1.pt"

    again = make(tmp_path, kind, memory_budget_gb=budget, **options)
    again.load(str(tmp_path / "latest"))
    again.learn(2)
    assert again.num_iterations == 4


def test_the_iterations_before_are_saved(memory, tmp_path):
    runner = make(tmp_path, "ppo", num_mini_batches=1)

    def shrink(*args, **kwargs):
        log(*args, **kwargs)
        memory["envs"] = NUM_ENVS // 2 if runner.num_iterations == 2 else NUM_ENVS

    log, runner.logger.log = runner.logger.log, shrink
    with pytest.raises(torch.OutOfMemoryError):
        runner.learn(5)
    assert latest_checkpoint(tmp_path).name == "model_1.pt"


def test_where_one_environment_is_too_much_another_fix_is_named(memory, monkeypatch):
    runner = make(None, "ppo", num_mini_batches=1)
    runner.learn(1)
    memory["envs"] = NUM_ENVS // 2
    monkeypatch.setattr(out_of_memory, "_free", lambda device: 1000.0)
    with pytest.raises(torch.OutOfMemoryError, match=r"none would do: .* Lower gradient_length,"):
        runner.learn(1)


def test_where_even_the_plan_has_no_memory_what_is_free_is_named(memory, monkeypatch):
    runner = make(None, "ppo", num_mini_batches=1)
    runner.learn(1)
    memory["envs"] = 0
    text = r"is None, expected a lower one: the update ran out of memory .* and was undone\.$"
    with pytest.raises(torch.OutOfMemoryError, match=text):
        runner.learn(1)
    monkeypatch.setattr(out_of_memory, "_free", lambda device: 2e9)
    with pytest.raises(torch.OutOfMemoryError, match=r"expected at most 1\.8, which is free:"):
        runner.learn(1)


def test_a_rank_of_several_makes_no_plan_alone(memory, monkeypatch):
    """The others would wait in an exchange that it does not come to."""
    session = make(None, "ppo").alg._session
    monkeypatch.setattr(session, "_ranks", Ranks(together=True))
    monkeypatch.setattr(session, "plan_memory", lambda: pytest.fail("made a plan"))

    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory.")

    explained = []

    def counted(*arguments):
        explained.append(explain(*arguments))
        return explained[-1]

    monkeypatch.setattr(session_module, "explain", counted)
    for _ in range(2):  # what a second mini-batch meets is not looked into again
        session.attempt(fail, otherwise=None)
    assert len(explained) == 1
    with pytest.raises(torch.OutOfMemoryError, match="is None, expected a lower one: the update"):
        raise session._error


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
    with pytest.raises(torch.OutOfMemoryError):
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
        assert out_of_memory.is_out_of_memory(RuntimeError(text))
    assert out_of_memory.is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert not out_of_memory.is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    assert not out_of_memory.is_out_of_memory(ValueError("CUDA error: out of memory"))


def test_a_budget_is_never_rounded_below_what_it_takes():
    for number in (1.0, 1.234, 1.2341, 9.999, 0.0123449, 99.96):
        assert float(out_of_memory._rounded_up(number)) >= number
