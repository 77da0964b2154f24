"""The host waits for the device once per update, for the metrics, and never in the rollout."""

import contextlib
import math
import sys
import traceback

import pytest
import torch
from support import helpers
from support.cases import CASES, EXPECTED_WARNINGS, RECORDED
from support.operations_recording import READS
from support.triton_on_cpu import triton_engine_on_cpu
from support.waiting import waits_are_allowed, waits_are_errors
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = EXPECTED_WARNINGS

COPIES = {"tolist", "numpy", "cpu", "tensor", "as_tensor", "__array__"}
"""Functions of torch that copy between host and device; checked before the dispatcher."""

WAITING = (*READS, "unique", "repeat_interleave")
"""Operations with a result, or a size of it, that the host has to know."""

OTHERS = "support.helpers", "support.cases"
"""Modules whose reads are not ours: environments of tests."""


def is_ours(frame):
    """Return whether a read with this innermost frame is ours."""
    frames = [each for each, _ in traceback.walk_stack(frame)]
    callers = [each for each in frames if each.f_code.co_name != "__torch_function__"]
    names = (each.f_globals["__name__"] for each in callers)
    packages = "rsl_rl", "rsl_tbptt", "support"
    return next((n for n in names if n.split(".")[0] in packages), "") not in OTHERS


class HostTransfers(contextlib.ExitStack):
    """Lists our operations that would make the host wait for a GPU, here on a CPU."""

    def __enter__(self):
        self.seen = seen = []

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if getattr(function, "__name__", "") in COPIES and is_ours(sys._getframe()):
                    seen.append(function.__name__)
                return function(*args, **(kwargs or {}))

        class Operations(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
                if waits(operation, args) and is_ours(sys._getframe()):
                    seen.append(str(operation))
                return operation(*args, **(kwargs or {}))

        self.enter_context(Functions())
        self.enter_context(Operations())
        return self


def waits(operation, args):
    name = operation.name().removeprefix("aten::").split(".")[0]
    if name in ("index", "index_put", "index_put_"):
        masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
        is_fill = name != "index" and args[2].dim() == 0  # torch makes a masked_fill of it
        return bool(masks) and not is_fill
    return name.startswith(WAITING)


ON_TRITON = "distillation-student-lstm", "ppo-models-gru"


@pytest.mark.parametrize("name", RECORDED)
def test_an_update_reads_the_device_once_and_a_rollout_never(name, monkeypatch):
    # In inference mode, as the runner's, reading one value does not reach the dispatcher.
    monkeypatch.setattr(helpers, "inference_mode", torch.no_grad)
    if "rnd" in name:  # rsl_rl's normaliser of rewards reads whether it has seen any
        others = (*OTHERS, "rsl_rl.modules.normalization")
        monkeypatch.setattr(sys.modules[__name__], "OTHERS", others)
    case = CASES[name]
    # Another engine may read what it needs where that costs nothing.
    options = {"scan_engine": "reference"}
    with contextlib.ExitStack() as engine:
        if name in ON_TRITON:
            engine.enter_context(triton_engine_on_cpu())
            options = {"scan_engine": "triton", "num_mini_batches": 1, "num_learning_epochs": 1}
        algorithm = case.build(**options)
        case.fill(algorithm, 0)
        algorithm.update()
        with HostTransfers() as rollout:
            case.fill(algorithm, 1)
        with HostTransfers() as update:
            metrics = algorithm.update()
    assert all(math.isfinite(value) for value in metrics.values())
    assert rollout.seen == []
    assert update.seen == ["tolist"]


def test_time_outs_without_final_observations_are_asked_for_after_the_first_rollout(monkeypatch):
    monkeypatch.setattr(helpers, "inference_mode", torch.no_grad)
    case = CASES["ppo-models-lstm"]
    algorithm, seen = case.build(), []
    for seed in range(2):
        case.fill(algorithm, seed)
        with HostTransfers() as update:
            algorithm.update()
        seen.append(update.seen)
    assert seen == [["tolist", "aten._local_scalar_dense.default"], ["tolist"]]


def test_each_kind_of_transfer_is_detected():
    values = torch.randn(4)
    with HostTransfers() as transfers:
        for read in (
            lambda: values[0].item(),
            lambda: bool(values[0] > 0),
            lambda: values[values > 0],
            values.nonzero,
            values.numpy,
            values.tolist,
            lambda: torch.tensor(1.0, device=values.device),
            lambda: torch.equal(values, values),
        ):
            transfers.seen.clear()
            read()
            assert len(transfers.seen) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["distillation-buffer-heads-average", "ppo-rnd-heads-window"])
def test_a_gpu_is_read_only_for_the_metrics(name, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    case = CASES[name]
    algorithm = case.build(device="cuda:0", scan_engine="auto")
    case.fill(algorithm, 0)
    algorithm.update()  # the first one allocates
    case.fill(algorithm, 1)
    reads, tolist = [], torch.Tensor.tolist

    def counting_tolist(tensor):
        reads.append(tensor.shape)
        with waits_are_allowed():
            return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counting_tolist)
    with waits_are_errors():
        algorithm.update()
    assert len(reads) == 1
