"""The measured peak in memory is that of the update and the process, and nothing else."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rsl_tbptt.bench import memory as memories
from rsl_tbptt.bench.case import Case
from rsl_tbptt.bench.memory import EXACT_MALLOC, measure_in_own_process, measure_memory

TINY = Case(algorithm="distillation", num_envs=8, num_steps=6, gradient_length=6, rnn_hidden_dim=8)
ALLOCATE_AND_FREE = """
import torch
from rsl_tbptt.bench.memory import Peak
peak = Peak(torch.device("cpu"))
torch.ones(25_000_000)
torch.ones(1_000_000)
print(peak.highest() - peak.start)
"""


def test_the_process_takes_more_than_its_storage_and_update():
    case = replace(TINY, num_envs=4096)
    memory = measure_in_own_process(case, "rsl_rl")
    floats = case.num_steps * case.num_envs * (48 + 2 * 12 + 1)
    assert 1e6 * memory.storage == 4 * floats + case.num_steps * case.num_envs  # dones are bytes
    assert memory.update_peak > 0
    assert memory.process_peak > 0.9 * (memory.storage + memory.update_peak)


@pytest.mark.parametrize("stage", ["rollout", "update"])
def test_the_process_peaks_in_rollout_or_update(stage, monkeypatch):
    def use_100_megabytes(*_):
        torch.ones(25_000_000)

    stages = dict.fromkeys(("rollout", "update"), lambda *_: None) | {stage: use_100_megabytes}
    optimizer = SimpleNamespace(state={})
    storage = SimpleNamespace(clear=lambda: None)
    algorithm = SimpleNamespace(storage=storage, optimizer=optimizer, update=stages["update"])
    monkeypatch.setattr(memories, "build", lambda case, library: algorithm)
    monkeypatch.setattr(memories, "fill", lambda *_, seed=0: stages["rollout"]())
    memory = measure_memory(TINY, "rsl_rl")
    assert 99 < memory.process_peak < 105
    assert (memory.update_peak > 99) == (stage == "update")


def test_the_peak_is_that_of_the_memory_in_use():
    result = subprocess.run(
        [sys.executable, "-c", ALLOCATE_AND_FREE],
        capture_output=True,
        text=True,
        check=True,
        env=EXACT_MALLOC,
    )
    assert 100e6 < int(result.stdout) < 104e6


def test_a_longer_rollout_takes_no_more_memory_than_its_storage():
    case = Case(algorithm="ppo", num_envs=512, num_steps=32, gradient_length=8, rnn_hidden_dim=128)
    shorter, longer = (  # 128 environments in a mini-batch, of which 4 windows run at once
        measure_in_own_process(replace(case, num_steps=steps), "rsl_tbptt") for steps in (32, 64)
    )
    assert longer.storage == pytest.approx(2 * shorter.storage, rel=0.1)
    assert longer.update_peak < 1.1 * shorter.update_peak


def test_more_environments_with_a_camera_take_no_more_memory():
    case = Case(
        algorithm="distillation",
        num_envs=64,
        num_steps=8,
        gradient_length=8,
        rnn_hidden_dim=32,
        camera_period=1,
    )
    few, many = (
        measure_in_own_process(replace(case, num_envs=num_envs), "rsl_tbptt").update_peak
        for num_envs in (64, 512)
    )
    assert many < 1.2 * few
