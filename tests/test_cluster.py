"""The scripts for clusters as printed in the docs."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HOWTO = Path(__file__).parents[1] / "docs" / "howto"
PAGES = [HOWTO / "resume.md", HOWTO / "cluster.md"]
BLOCK = re.compile(r"```(?:python|bash)\n((?:#!/bin/bash\n)?# (\S+)\n.*?)```", re.DOTALL)
SCRIPTS = {name: text for page in PAGES for text, name in BLOCK.findall(page.read_text())}


@pytest.fixture
def folder(tmp_path):
    """A folder with the page's scripts, and Python on the path."""
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    # With a link, Python would run outside its environment.
    python = f'#!/bin/bash\nexec {sys.executable} "$@"\n'
    (tmp_path / "bin" / "python").write_text(python)
    (tmp_path / "bin" / "python").chmod(0o755)
    return tmp_path


def test_the_scripts_are_valid_and_slurms_warning_is_the_signal_that_we_handle(folder):
    for name in SCRIPTS.keys() - {"train.py"}:
        subprocess.run(["bash", "-n", name], cwd=folder, check=True)
    assert "#SBATCH --signal=USR1@" in SCRIPTS["slurm.sh"]


def start(folder, script, **values):
    """Start a script in a new session, with this Python and this checkout on the paths."""
    variables = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        **{name: str(value) for name, value in values.items()},
    }
    return subprocess.Popen(["bash", script], cwd=folder, env=variables, start_new_session=True)


@pytest.mark.long
def test_the_training_script_continues_after_a_stop(folder):
    script = SCRIPTS["train.py"]
    assert "1000" in script
    (folder / "train.py").write_text(script)
    process = start(folder, "entrypoint.sh")
    run = folder / "logs" / "recall"
    while not (run / "model_0.pt").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)  # `docker stop`
    assert process.wait(120) == 85
    done = 1 + max(int(path.stem.removeprefix("model_")) for path in run.glob("model_*.pt"))
    (folder / "train.py").write_text(script.replace("1000", str(done + 2), 1))
    process = start(folder, "machine.sh", GPUS=1)
    assert process.wait(240) == 0
    assert (run / f"model_{done + 1}.pt").exists()
