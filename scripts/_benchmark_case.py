"""One case of the benchmark: random robots, an algorithm, and the memory of its update."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rsl_rl.models import RNNModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttPPO

OBS_DIM, ACTION_DIM = 48, 12  # a quadruped's proprioception and its joints
HIDDEN_DIMS = (256, 128, 64)
MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured."""

    num_envs: int
    num_steps: int
    gradient_length: int
    rnn_type: str
    rnn_hidden_dim: int
    done_rate: float
    device: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one update, in megabytes of 10^6 bytes."""

    storage: float
    """The rollout storage."""
    update_peak: float
    """The most that ``update()`` takes beyond what is there before it."""


def measure_update_memory(case: Case) -> Memory:
    """Measure the second update: the first one makes the optimiser's state."""
    algorithm = build_ppo(case)
    for seed in range(2):
        fill(algorithm, case, seed)
        peak = Peak(torch.device(case.device))
        algorithm.update()
        used = peak.bytes_beyond_start()
    storage = sum(
        tensor.numel() * tensor.element_size() for tensor in _tensors(vars(algorithm.storage))
    )
    return Memory(storage=storage / MEGABYTE, update_peak=used / MEGABYTE)


def build_ppo(case: Case) -> TbpttPPO:
    """Build an actor and a critic with memory and their PPO."""
    torch.manual_seed(0)
    obs = random_obs(case)
    models = {
        role: RNNModel(
            obs,
            {"actor": ["policy"], "critic": ["policy"]},
            role,
            outputs,
            hidden_dims=list(HIDDEN_DIMS),
            obs_normalization=True,
            distribution_cfg=distribution,
            rnn_type=case.rnn_type,
            rnn_hidden_dim=case.rnn_hidden_dim,
        ).to(case.device)
        for role, outputs, distribution in (
            ("actor", ACTION_DIM, {"class_name": "GaussianDistribution", "init_std": 1.0}),
            ("critic", 1, None),
        )
    }
    storage = RolloutStorage("rl", case.num_envs, case.num_steps, obs, [ACTION_DIM], case.device)
    algorithm = TbpttPPO(
        models["actor"],
        models["critic"],
        storage,
        device=case.device,
        num_learning_epochs=1,
        gradient_length=case.gradient_length,
    )
    algorithm.train_mode()
    return algorithm


def fill(algorithm: TbpttPPO, case: Case, seed: int) -> None:
    """Roll out random robots."""
    torch.manual_seed(seed)
    with torch.inference_mode():
        for _ in range(case.num_steps):
            obs = random_obs(case)
            algorithm.act(obs)
            rewards = torch.randn(case.num_envs, device=case.device)
            dones = torch.rand(case.num_envs, device=case.device) < case.done_rate
            algorithm.process_env_step(obs, rewards, dones.long(), {})
        algorithm.compute_returns(random_obs(case))


def random_obs(case: Case) -> TensorDict:
    """Return observations of all environments."""
    obs = torch.randn(case.num_envs, OBS_DIM, device=case.device)
    return TensorDict({"policy": obs}, batch_size=[case.num_envs], device=case.device)


def _tensors(values: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among an object's attributes."""
    found: list[torch.Tensor] = []
    for value in values.values():
        if isinstance(value, TensorDict):
            found += list(value.values())
        parts = value if isinstance(value, tuple) else (value,)
        found += [part for part in parts if isinstance(part, torch.Tensor)]
    return found


class Peak:
    """Peak memory of this process on a device from now on."""

    def __init__(self, device: torch.device) -> None:
        """Begin to watch. On the CPU, freed memory is given back to the system before."""
        self._cuda = device.type == "cuda"
        if self._cuda:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._start = torch.cuda.memory_allocated(device)
            return
        if sys.platform != "linux":
            raise NotImplementedError(f"Peak memory on {sys.platform} is not known, only on Linux.")
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self._start = _status_bytes("VmRSS")

    def bytes_beyond_start(self) -> int:
        """Return the peak since then, beyond what was in use then."""
        peak = torch.cuda.max_memory_allocated() if self._cuda else _status_bytes("VmHWM")
        return peak - self._start


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise NotImplementedError(f"/proc/self/status lacks {field}.")
