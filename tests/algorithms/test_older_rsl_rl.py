"""The tests of the algorithms and runners hold with every supported rsl_rl, not only the newest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITES = ["tests/algorithms", "tests/runners"]
LEFT_OUT = ["tests/algorithms/test_older_rsl_rl.py", "tests/algorithms/test_distributed.py"]
"""This file, and what runs our own code only but takes long."""


def run_with(version: str, *arguments: str) -> subprocess.CompletedProcess:
    folder = ROOT / ".rsl_rl" / version
    assert folder.is_dir(), (
        f"rsl_rl {version} is not at {folder}: run `make test`, which installs it"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["5.0.1", "5.4.2"])
def test_suites_pass_with(version):
    found = run_with(version, "-c", "import rsl_rl; print(rsl_rl.__file__)")
    assert f".rsl_rl/{version}" in found.stdout
    ignored = [f"--ignore={path}" for path in LEFT_OUT]
    result = run_with(version, "-m", "pytest", *SUITES, *ignored)
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout
