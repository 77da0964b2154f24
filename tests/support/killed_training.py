"""Trainings of a platform that are killed, and what continues them."""

import os
import shlex
import subprocess
import sys
import time
import zipfile
from pathlib import Path

SECONDS = 280
"""Longest start of a simulator."""
WITH_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def kill_once_there(command: list[str], folder: Path, checkpoint: str) -> Path:
    """Start a training in a folder and kill it once a checkpoint is there; return its log folder.

    Half of a newer checkpoint is left next to it, as by a kill within a save.
    """
    program = str(Path(sys.executable).with_name(command[0]))
    with (folder / "training.log").open("w") as log:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=folder,
            env=os.environ | WITH_ONE_THREAD,
            stdout=log,
            stderr=log,
        )
        try:
            for _ in range(10 * SECONDS):
                # Half a checkpoint is no archive: rsl_rl's own runner writes it in place.
                named = folder.glob(f"logs/rsl_rl/*/*/{checkpoint}")
                if found := [path for path in named if zipfile.is_zipfile(path)]:
                    break
                assert process.poll() is None, (folder / "training.log").read_text()[-3000:]
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    (path,) = found
    number = int(path.stem.split("_")[1])
    for other in path.parent.glob("model_*.pt"):
        if int(other.stem.split("_")[1]) > number:
            other.unlink()
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.with_name(f"model_{number + 1}.pt").write_bytes(half)
    return path.parent


def tool(*words: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``rsl-tbptt`` in a folder, which has to succeed."""
    command = [sys.executable, "-m", "rsl_tbptt.tools.commands.cli", *map(str, words)]
    return _succeed(command, folder, environment)


def in_shell(line: str, folder: Path) -> str:
    """Paste a command into a shell with this environment activated; return what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return _succeed(["bash", "-c", line], folder, {"PATH": path}).stdout


def _succeed(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | WITH_ONE_THREAD | environment
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result


def words_of(line: str) -> list[str]:
    """Return the words of a printed command, after the ``cd``."""
    return shlex.split(line.partition(" && ")[2])
