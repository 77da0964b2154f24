"""Blocks of environments fit the caches and leave no sliver."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rsl_tbptt.core import accumulate
from rsl_tbptt.core.accumulate import (
    best_num_micro_batches,
    best_num_windows,
    bytes_per_sample,
)

CPU = torch.device("cpu")
LSTM = bytes_per_sample(nn.LSTM(48, 256))


@given(num_envs=st.integers(1, 10_000), num_steps=st.integers(1, 200))
def test_blocks_leave_no_sliver(num_envs, num_steps):
    blocks = best_num_micro_batches(num_envs, num_steps, LSTM, CPU)
    assert num_envs / blocks >= min(num_envs, 128)
    assert best_num_micro_batches(num_envs, num_steps, LSTM, torch.device("cuda")) == 1


@pytest.mark.parametrize(
    ("cache", "num_steps", "expected"),
    [
        ("2048K", 24, 16),  # 2 MiB hold 256 samples of 8 * 256 floats
        ("8192K", 24, 4),
        ("256K", 24, 16),  # not below 256 environments
        ("256K", 2, 4),  # 2048 samples
        (None, 24, 16),
    ],
)
def test_blocks_follow_the_cache(monkeypatch, tmp_path, cache, num_steps, expected):
    monkeypatch.setattr(accumulate, "_CACHE_SIZE", tmp_path / "size")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    if cache:
        (tmp_path / "size").write_text(f"{cache}\n")
    assert best_num_micro_batches(4096, num_steps, LSTM, CPU) == expected


def test_more_threads_take_larger_blocks(monkeypatch, tmp_path):
    monkeypatch.setattr(accumulate, "_CACHE_SIZE", tmp_path / "size")
    (tmp_path / "size").write_text("2048K\n")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert best_num_micro_batches(4096, 24, LSTM, CPU) == 2


@given(num_envs=st.integers(1, 10_000), num_steps=st.integers(1, 200))
def test_short_windows_of_few_environments_are_run_at_once(num_envs, num_steps):
    at_once = best_num_windows(num_envs, num_steps, CPU)
    assert at_once == 1 or num_envs * num_steps * at_once <= 4096
    assert num_envs * num_steps * (at_once + 1) > 4096
    assert best_num_windows(num_envs, num_steps, torch.device("cuda")) == 1
