"""The scripts for clusters as printed in the docs, with stand-ins for SLURM's commands."""

import json
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

SRUN = """#!/bin/bash
# Runs a command as SLURM_NTASKS tasks and returns the highest status, as srun does.
echo "srun $1 $2" >> "$LOG"
shift 2
tasks=()
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$((task % 2)) "$@" &
    tasks+=($!)
done
if [[ $WARNING ]]; then
    for ((task = 0; task < SLURM_NTASKS; task++)); do
        until [[ -e ready_$task ]]; do sleep 0.01; done
    done
    kill -s "$WARNING" "${tasks[@]}"
fi
highest=0
for task in "${tasks[@]}"; do
    wait "$task"
    status=$?
    ((status > highest)) && highest=$status
done
exit "$highest"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >> "$LOG"
[[ $1 == show ]] && printf 'node7\\nnode8\\n'
exit 0
"""
TRAIN = """
import json, os, signal, sys, time
def stop(number, frame):
    sys.exit(85)
signal.signal(signal.SIGUSR1, stop)
signal.signal(signal.SIGTERM, stop)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
seen = {name: os.environ.get(name) for name in names}
ready = f"ready_{seen['RANK']}"
with open("written_" + ready, "w") as file:
    json.dump(seen, file)
os.replace("written_" + ready, ready)  # complete when it exists, as the signal follows at once
if os.environ.get("WARNING"):
    time.sleep(60)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the page's scripts, and SLURM's commands next to Python on the path."""
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    # With a link, Python would run outside its environment.
    python = f'#!/bin/bash\nexec {sys.executable} "$@"\n'
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("python", python)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def environment(folder, **values):
    """Return variables that put the stand-ins and this checkout on the paths."""
    folders = (folder / "bin", Path(sys.executable).parent, os.environ["PATH"])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return {
        **kept,
        "PATH": os.pathsep.join(map(str, folders)),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        "LOG": str(folder / "log"),
        **{name: str(value) for name, value in values.items()},
    }


def submit(folder, **values):
    """Run the SLURM script as its batch shell; return its status and the commands it called."""
    (folder / "train.py").write_text(TRAIN)
    slurm = {"SLURM_JOB_ID": 123456, "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NTASKS": 4}
    variables = environment(folder, **{**slurm, **values})
    ended = subprocess.run(["bash", "slurm.sh"], cwd=folder, env=variables, timeout=60, check=False)
    return ended.returncode, (folder / "log").read_text().splitlines()


def test_slurms_warning_ends_all_tasks_and_requeues_the_job(folder):
    assert "#SBATCH --signal=USR1@" in SCRIPTS["slurm.sh"]
    status, commands = submit(folder, WARNING="USR1")
    assert status == 85
    assert commands == [
        "scontrol show hostnames node[7-8]",
        "srun --kill-on-bad-exit=0 --wait=60",
        "scontrol requeue 123456",
    ]
    seen = [json.loads((folder / f"ready_{rank}").read_text()) for rank in range(4)]
    places = [[str(rank), str(rank % 2), "4", "node7", "23456"] for rank in range(4)]
    assert [[*found.values()] for found in seen] == places


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"STATUS": 0}, 0),
        ({"STATUS": 1}, 1),
        ({"WARNING": "KILL"}, 137),
        ({"WARNING": "USR1", "SLURM_RESTART_COUNT": 100}, 85),
    ],
)
def test_a_done_crashed_or_often_restarted_job_is_not_requeued(values, status, folder):
    ended, commands = submit(folder, **values)
    assert ended == status
    assert not any(command.startswith("scontrol requeue") for command in commands)


def start(folder, script, **values):
    """Start a script in a new session."""
    variables = environment(folder, **values)
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
