"""A full disk costs checkpoints, not the training; a read-only folder is refused at the start."""

import errno
import os
import re
import signal
import subprocess
import time
import warnings
from contextlib import suppress

import pytest
import torch
from support.safe_runs import DisturbedEnv, make_runner

from rsl_tbptt.checkpoints import writing
from rsl_tbptt.checkpoints.reading import latest_checkpoint
from rsl_tbptt.checkpoints.writing import NOTES, NotWrittenError, save_checkpoint

STEPS = 6
"""Of a rollout."""

DISK = 2 * 2**20
FULL = r"model_\d+\.pt' cannot be written \(No space left on device; [\d,]+ bytes are free in its"


@pytest.fixture
def mounted(tmp_path):
    """A way to have a file system of its own, where this is allowed."""
    folders = []

    def mount(options):
        folder = tmp_path / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("no file system may be mounted here")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def failing(monkeypatch):
    """Have each file end half written, as long as the list has entries."""
    fails = []
    save = torch.save

    def fail(checkpoint, file):
        if not fails:
            return save(checkpoint, file)
        file.write(b"half")
        raise OSError(fails.pop(), os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", fail)
    return fails


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".pt")


def fill(folder):
    with (folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1000))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_training_goes_on_over_a_full_disk(mounted):
    folder = mounted(f"size={DISK}")
    full, free = lambda: fill(folder), lambda: (folder / "ballast").unlink()
    runner = make_runner(folder, env=DisturbedEnv({STEPS + 2: full, 3 * STEPS + 2: free}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner.learn(6)
    (of_file, *of_curves) = sorted(str(warning.message) for warning in caught)[::-1]
    assert re.search(FULL, of_file)
    assert all("TensorBoard's file" in text for text in of_curves)
    assert names(folder) == [f"model_{it}.pt" for it in (0, 3, 4, 5)]
    assert all(torch.load(path) for path in folder.glob("*.pt"))
    assert not list(folder.glob(".*"))
    assert runner.num_iterations == 6


@pytest.mark.parametrize("kind", ["distillation", "ppo"])
def test_a_file_that_fails_is_passed_over_with_one_warning_for_each_time(kind, failing, tmp_path):
    def fail(times):
        return lambda: failing.extend([errno.ENOSPC] * times)

    env = DisturbedEnv({STEPS + 2: fail(2), 4 * STEPS + 2: fail(1)})
    runner = make_runner(tmp_path, kind, env=env)
    with pytest.warns(UserWarning, match="training goes on") as caught:
        runner.learn(6)
    texts = [str(warning.message) for warning in caught]
    assert [text.split("'")[1][-10:] for text in texts] == ["model_1.pt", "model_4.pt"]
    for text in texts:
        assert "free some space there, or keep fewer checkpoints (keep_last)" in text
        assert "\n" not in text
    assert names(tmp_path) == [f"model_{it}.pt" for it in (0, 3, 5)]
    assert not list(tmp_path.glob(".*"))
    assert latest_checkpoint(tmp_path).name == "model_5.pt"


def test_the_last_file_of_a_training_is_not_passed_over(failing, tmp_path):
    runner = make_runner(tmp_path, save_interval=100)
    runner.learn(1)
    failing.append(errno.ENOSPC)
    with pytest.raises(NotWrittenError, match=r"model_2\.pt' cannot be written"):
        runner.learn(2)
    assert names(tmp_path) == ["model_0.pt"]
    assert not failing
    runner.save(str(tmp_path / "model_2.pt"))
    assert names(tmp_path) == ["model_0.pt", "model_2.pt"]


def test_the_file_that_a_signal_asks_for_is_not_passed_over(failing, tmp_path):
    def disturb():
        failing.append(errno.EIO)
        os.kill(os.getpid(), signal.SIGTERM)

    runner = make_runner(tmp_path, env=DisturbedEnv({STEPS + 2: disturb}), save_interval=100)
    with pytest.raises(NotWrittenError, match=r"model_1\.pt' cannot .* choose another folder or"):
        runner.learn(5)
    assert names(tmp_path) == ["model_0.pt"]


@pytest.mark.parametrize("room", [0, 300, 20_000, 60_000])
def test_wherever_the_disk_ends_the_reason_is_named_and_nothing_left(room, mounted):
    """The file, its archive's directory, what is buffered: torch names only some of them."""
    folder = mounted(f"size={DISK}")
    fill(folder)
    with (folder / "ballast").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - room)
    with pytest.raises(NotWrittenError, match=r"No space left on device"):
        save_checkpoint({"value": torch.zeros(20_000)}, folder / "model.pt")
    assert [path.name for path in folder.iterdir()] == ["ballast"]


def test_notes_that_cannot_be_written_end_nothing(tmp_path, monkeypatch):
    runner = make_runner(tmp_path, keep_last=1)
    runner.learn(1)

    def fail(path, value):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("rsl_tbptt.checkpoints.writing.write_json", fail)
        with pytest.warns(UserWarning, match=rf"{NOTES}' cannot be written \(No space left"):
            runner.learn(1)
    runner.learn(1)
    assert names(tmp_path) == ["model_2.pt"]


@pytest.fixture
def read_only(mounted, tmp_path):
    """A folder in which nothing can be written."""
    if os.geteuid() == 0:
        return mounted("ro")
    tmp_path.chmod(0o555)
    return tmp_path


@pytest.mark.parametrize("kind", ["distillation", "ppo"])
def test_a_read_only_folder_is_refused_before_anything_is_built(kind, read_only):
    env = DisturbedEnv({1: lambda: pytest.fail("a rollout has begun")})
    refused = r"run folder '.*' cannot be written \(.*\): choose another folder or "
    with pytest.raises(ValueError, match=refused):
        make_runner(read_only, kind, env=env)
    with pytest.raises(ValueError, match=refused):
        make_runner(read_only / "run", kind, env=env)


def test_a_disk_that_is_full_at_the_start_is_refused(mounted):
    folder = mounted(f"size={DISK}")
    fill(folder)
    with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\): free"):
        writing.check_writable(folder)


def test_curves_go_on_in_another_file_where_there_is_room_again(tmp_path, monkeypatch):
    def lose_the_disk():
        thread = runner.logger.writer.file_writer.event_writer._async_writer._worker
        thread.exception = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as it ends with one

    runner = make_runner(tmp_path, env=DisturbedEnv({STEPS + 2: lose_the_disk}))
    with pytest.warns(UserWarning, match=r"TensorBoard's file in .* \(No space left on device\)"):
        runner.learn(3)
    assert runner.num_iterations == 3
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 61.0)
    runner.logger.writer.add_scalar("Loss/behavior", 4.0, 9)
    runner.logger.writer.close()
    assert steps_in(tmp_path) == [0, 9]


def steps_in(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return [event.step for event in events.Scalars("Loss/behavior")]
