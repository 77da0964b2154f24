"""The memory of PPO's update depends on its windows, not on the length of the rollout."""

import re
import subprocess
import sys

from _benchmark_memory import EXACT_MALLOC

SMALL = ("--num-envs=512", "--num-steps=16", "--gradient-length=8", "--rnn-hidden-dim=128")
ALLOCATE_AND_FREE = """
import torch
from _benchmark_memory import Peak
peak = Peak(torch.device("cpu"))
torch.ones(25_000_000)
torch.ones(1_000_000)
print(peak.bytes_beyond_start())
"""


def test_a_longer_rollout_takes_no_more_memory(repository):
    script = repository / "scripts" / "benchmark.py"
    command = [sys.executable, script, "rollout-memory", *SMALL]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    growth = float(re.search(r"takes ([+-][\d.]+)% beyond", result.stdout)[1])
    assert growth < 10


def test_the_peak_is_that_of_the_memory_in_use(repository):
    result = subprocess.run(
        [sys.executable, "-c", ALLOCATE_AND_FREE],
        capture_output=True,
        text=True,
        check=True,
        cwd=repository / "scripts",
        env=EXACT_MALLOC,
    )
    assert 100e6 < int(result.stdout) < 104e6
