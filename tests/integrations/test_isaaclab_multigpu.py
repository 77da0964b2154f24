"""Training on several GPUs: the command that Isaac Lab starts, on a machine without GPUs."""

import shlex

import pytest
from support.isaaclab_page import NEEDS_GPUS, commands


@pytest.mark.isaaclab
def test_isaaclab_starts_torchrun_with_one_process_per_gpu(isaaclab):
    words = commands()[NEEDS_GPUS].words
    _, printed = isaaclab.call(
        "isaaclab.cli:train_multigpu", [*words[1:], "--dry_run"], CUDA_VISIBLE_DEVICES="0,1"
    )
    (line,) = [line for line in printed.splitlines() if "torch.distributed.run" in line]
    started = shlex.split(line)
    assert started[1:5] == ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
    assert "--distributed" in started
    for word in words[3:]:  # all but the number of GPUs
        assert word in started
