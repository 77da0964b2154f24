"""The host waits for the device once per update, for the metrics, and never in the rollout."""

import contextlib
import math
from typing import Any

import pytest
import torch
from support.auxiliary_reference import HEADS
from support.helpers import (
    make_distillation,
    make_obs,
    make_ppo,
    rnd_cfg,
)
from support.triton_on_cpu import triton_engine_on_cpu
from support.waiting import waits_are_allowed, waits_are_errors
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")

NUM_STEPS, NUM_ENVS = 6, 8

READS = {"tolist", "numpy", "cpu", "tensor", "as_tensor", "__array__"}
"""Functions of torch that copy between host and device; checked before the dispatcher."""

WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "equal",
    "repeat_interleave",
)
"""Operations with a result, or a size of it, that the host has to know."""


class HostTransfers(contextlib.ExitStack):
    """Lists the operations that would make the host wait for a GPU, here on a CPU."""

    def __enter__(self):
        self.seen = seen = []

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if getattr(function, "__name__", "") in READS:
                    seen.append(function.__name__)
                return function(*args, **(kwargs or {}))

        class Operations(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
                if waits(operation, args):
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


def make(algorithm_class, models="lstm", **options):
    if algorithm_class is TbpttPPO:
        return make_ppo(TbpttPPO, NUM_STEPS, NUM_ENVS, models, models, **options)
    return make_distillation(TbpttDistillation, NUM_STEPS, NUM_ENVS, models, **options)


def roll_out(algorithm, gives_final_obs=True):
    """Fill the storage and compute returns as the runner does, on the algorithm's device.

    The runner uses inference mode, in which reading one value does not reach the dispatcher.
    """
    device = algorithm.device
    with torch.no_grad():
        for _ in range(NUM_STEPS):
            obs = make_obs(NUM_ENVS).to(device)
            rewards, dones = torch.randn(2, NUM_ENVS, device=device)
            algorithm.act(obs)
            extras: dict[str, Any] = {"time_outs": dones > 1.0}
            if gives_final_obs:
                extras["final_obs"] = dict(obs.items())
            algorithm.process_env_step(obs, rewards, (dones > 0.5).long(), extras)
        algorithm.compute_returns(obs)


LATENT = {"latent": {"target": "teacher:mlp.0", "loss": "bce"}}

CASES = [
    (TbpttDistillation, {"gradient_length": 2, "update_length": 4, "loss_type": "kl"}),
    (TbpttDistillation, {"gradient_length": 4, "held_out_envs": 2, "buffer_rollouts": 2}),
    (TbpttDistillation, {"gradient_length": 4, "models": "mlp", "batch_teacher_labels": True}),
    (
        TbpttDistillation,
        {"gradient_length": 4, "loss_type": "bce"},
    ),
    (
        TbpttPPO,
        {
            "gradient_length": 4,
            "minibatch_unit": "window",
            "burn_in_length": 2,
            "normalize_advantage_per_mini_batch": True,
        },
    ),
    (
        TbpttPPO,
        {"policy_loss": "kl_penalty", "schedule": "fixed", "loss_reduction": "episode_mean"},
    ),
    (TbpttPPO, {"rnd_cfg": rnd_cfg(), "num_micro_batches": 2, "auxiliary": HEADS}),
    (TbpttDistillation, {"gradient_length": 4, "auxiliary": {**HEADS, **LATENT}}),
]


def fresh(options) -> dict[str, Any]:
    """Copy options; rsl_rl 5.0 removes entries from a config."""
    return {key: dict(v) if isinstance(v, dict) else v for key, v in options.items()}


@pytest.mark.parametrize(("algorithm_class", "options"), CASES)
def test_an_update_reads_the_device_once_and_a_rollout_never(algorithm_class, options):
    if options.get("models") != "mlp":  # an engine may read what it needs where that costs nothing
        options = {**options, "scan_engine": "reference"}
    algorithm = make(algorithm_class, **fresh(options))
    roll_out(algorithm)
    algorithm.update()
    with HostTransfers() as rollout:
        roll_out(algorithm)
    with HostTransfers() as update:
        metrics = algorithm.update()
    assert all(math.isfinite(value) for value in metrics.values())
    assert rollout.seen == []
    assert update.seen == ["tolist"]


@pytest.mark.parametrize("algorithm_class", [TbpttDistillation, TbpttPPO])
def test_the_triton_engine_reads_nothing(algorithm_class):
    with triton_engine_on_cpu():
        once: dict[str, Any] = {"num_mini_batches": 1, "num_learning_epochs": 1}
        algorithm = make(algorithm_class, gradient_length=4, scan_engine="triton", **once)
        for _ in range(2):  # the first update makes the optimiser's state
            roll_out(algorithm)
            with HostTransfers() as update:
                algorithm.update()
            assert update.seen == ["tolist"]


def test_time_outs_without_final_observations_are_asked_for_after_the_rollout():
    algorithm = make(TbpttPPO, scan_engine="reference")
    with HostTransfers() as rollout:
        roll_out(algorithm, gives_final_obs=False)
    with HostTransfers() as update:
        algorithm.update()
    roll_out(algorithm, gives_final_obs=False)
    with HostTransfers() as later:
        algorithm.update()
    assert rollout.seen == []
    assert update.seen == ["tolist", "aten._local_scalar_dense.default"]
    assert later.seen == ["tolist"]


@pytest.mark.parametrize(
    "read",
    [
        lambda tensor: tensor[0].item(),
        lambda tensor: bool(tensor[0] > 0),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: tensor.nonzero(),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.tolist(),
        lambda tensor: torch.tensor(1.0, device=tensor.device),
        lambda tensor: torch.equal(tensor, tensor),
    ],
)
def test_each_kind_of_transfer_is_detected(read):
    values = torch.randn(4)
    with HostTransfers() as transfers:
        read(values)
    assert len(transfers.seen) == 1


@pytest.mark.gpu
@pytest.mark.parametrize(("algorithm_class", "options"), CASES)
def test_a_gpu_is_read_only_for_the_metrics(algorithm_class, options, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    algorithm = make(algorithm_class, device="cuda:0", **fresh(options))
    roll_out(algorithm)
    algorithm.update()  # the first one allocates
    roll_out(algorithm)
    reads, tolist = [], torch.Tensor.tolist

    def counting_tolist(tensor):
        reads.append(tensor.shape)
        with waits_are_allowed():
            return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counting_tolist)
    with waits_are_errors():
        algorithm.update()
    assert len(reads) == 1
