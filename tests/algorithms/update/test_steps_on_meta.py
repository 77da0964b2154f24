"""No optimiser step copies between host and device, which would break a recording on a GPU.

A step of each case runs on the meta device. Its tensors have shapes but no values, so whatever
reads one fails, and an operation that also touches a tensor of the CPU stands for a copy.
"""

import pytest
import torch
from support.cases import CASES, EXPECTED_WARNINGS, NUM_ENVS, NUM_STEPS, RECORDED
from support.helpers import obs_like
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rsl_tbptt.algorithms import TbpttDistillation, base, fused
from rsl_tbptt.core import scan

pytestmark = EXPECTED_WARNINGS

FROM_FILES = {"imitating", "fine", "pulled"}
NAMES = [name for name in RECORDED if FROM_FILES.isdisjoint(name.split("-"))]
READ = torch.Tensor.__bool__


class Transfers(TorchDispatchMode):
    """Names operations that touch tensors of both devices."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        results = operation(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, results))
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
        self.names += [str(operation)] * (len(devices) > 1)
        return results


@pytest.fixture(autouse=True)
def meta(monkeypatch):
    """Stand in for what torch lacks on the meta device: fused optimisers, Triton and autocast."""
    monkeypatch.setattr(base, "step_at", lambda optimizer, rate: None)
    for module in (scan.triton, fused):
        monkeypatch.setattr(module, "_kernel", lambda *_: lambda *_, **__: None)
    monkeypatch.setitem(scan.ENGINES, "triton", scan.ENGINES["triton"]._replace(device=None))

    def of_cpu(function):
        return lambda kind="cpu", *args, **options: function(
            kind.replace("meta", "cpu"), *args, **options
        )

    for name in ("autocast", "is_autocast_enabled", "get_autocast_dtype"):
        monkeypatch.setattr(torch, name, of_cpu(getattr(torch, name)))


def begun(name):
    """Return a case's algorithm on the meta device, with a rollout, at its first step."""
    algorithm = CASES[name].build(device="meta", scan_engine="triton")
    algorithm.step_checks.observations = lambda obs: obs
    algorithm.step_checks.step = lambda obs, rewards, dones: (rewards, dones)
    algorithm.begin_steps = lambda *_: None
    if hasattr(algorithm, "held_out"):
        algorithm.held_out.measure = lambda *_, **__: {}
    zeros = torch.zeros(NUM_ENVS, device="meta")
    for _ in range(NUM_STEPS):
        obs = obs_like(algorithm.storage, torch.Generator()).to("meta")
        algorithm.act(obs)
        algorithm.process_env_step(obs, zeros, zeros.bool(), {})
    algorithm.compute_returns(obs)
    algorithm.begin_update()
    return algorithm


def step(algorithm, first):
    """Draw a mini-batch; return a function that makes its optimiser step."""
    if isinstance(algorithm, TbpttDistillation):
        drawn = next(algorithm.experience.draw(1))
        return lambda: algorithm.step(drawn, None, 0, first=first)
    batch = next(iter(algorithm.batches.draw()))
    return lambda: algorithm.step(batch, first=first)


WARM_UPS = ["ppo-whole", "ppo-heads-mlp"]
"""Cases that also make steps while the critic warms up."""


@pytest.mark.filterwarnings("ignore:scan_engine is 'triton', which has no effect")
@pytest.mark.parametrize(
    ("name", "warms_up"), [*((name, False) for name in NAMES), *((name, True) for name in WARM_UPS)]
)
def test_no_step_copies_between_host_and_device(monkeypatch, name, warms_up):
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: self.is_meta or READ(self))
    algorithm = begun(name)
    if warms_up:
        algorithm.actor.requires_grad_(False)
        monkeypatch.setattr(type(algorithm), "holds_actor", True)
    for first in (True, False):
        make = step(algorithm, first)
        monkeypatch.setattr(torch.Tensor, "__bool__", READ)
        with Transfers() as transfers:
            make()
        assert not transfers.names
