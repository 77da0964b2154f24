"""Run code that simulates mjlab in a separate process, and return what it measured."""

import json
import os
import subprocess
import sys


def result_of(code, folder):
    """Run code in a separate process, and return the result that it wrote."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | hidden,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())
