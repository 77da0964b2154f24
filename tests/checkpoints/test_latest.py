"""The newest checkpoint that can be loaded is found, however the run ended."""

import os
import pickle
import warnings

import pytest
import torch

from rsl_tbptt.checkpoints import reading
from rsl_tbptt.checkpoints.reading import checkpoint_file, latest_checkpoint, numbered_checkpoints
from rsl_tbptt.checkpoints.writing import save_checkpoint


def write(folder, *names, size=4):
    for name in names:
        iteration = int("".join(filter(str.isdigit, name)))
        checkpoint = {"actor_state_dict": {"w": torch.ones(size)}, "iter": iteration, "infos": None}
        save_checkpoint(checkpoint, folder / name)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def something_else(path):
    torch.save({"weights": torch.ones(3)}, path)


def untrained(path):
    torch.save({"actor_state_dict": {}, "iter": 12, "infos": None}, path)


def without_iteration(path):
    torch.save({"actor_state_dict": {"w": torch.ones(3)}, "infos": None}, path)


def test_the_highest_iteration_is_the_latest_without_a_warning(tmp_path):
    write(tmp_path, "model_9.pt", "model_100.pt", "model_20.pt")
    (tmp_path / ".0a1b-model_200.pt").write_bytes(b"half")  # a file that a kill cut off
    (tmp_path / "exported_300.pt").write_bytes(b"something else")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest_checkpoint(tmp_path) == tmp_path / "model_100.pt"


@pytest.mark.parametrize(
    "damage", [truncate, empty, flip_a_bit, something_else, untrained, without_iteration]
)
def test_a_damaged_checkpoint_is_named_and_skipped(damage, tmp_path):
    write(tmp_path, "model_9.pt", "model_10.pt")
    write(tmp_path, "model_12.pt", size=10_000)
    damage(tmp_path / "model_12.pt")
    with pytest.warns(UserWarning, match=r"Passed over a checkpoint.*model_12\.pt"):
        assert latest_checkpoint(tmp_path) == tmp_path / "model_10.pt"


def test_a_checkpoint_that_is_written_meanwhile_is_found(tmp_path, monkeypatch):
    write(tmp_path, "model_1.pt", "model_2.pt")
    read = reading.read_checkpoint

    def write_meanwhile(path, device):
        if not (tmp_path / "model_4.pt").exists():  # after the folder was listed
            write(tmp_path, "model_3.pt", "model_4.pt")
            for name in ("model_1.pt", "model_2.pt"):
                (tmp_path / name).unlink()
        return read(path, device)

    monkeypatch.setattr(reading, "read_checkpoint", write_meanwhile)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest_checkpoint(tmp_path) == tmp_path / "model_4.pt"


def test_a_file_that_is_deleted_while_a_folder_is_listed_is_left_out(tmp_path):
    write(tmp_path, "model_1.pt")
    (tmp_path / "model_2.pt").symlink_to("gone")  # listed, but gone
    assert numbered_checkpoints(tmp_path) == [tmp_path / "model_1.pt"]
    assert latest_checkpoint(tmp_path) == tmp_path / "model_1.pt"


class Code:
    def __reduce__(self):
        return print, ("ran",)


def pickled(checkpoint, path):  # as torch wrote files before 1.6
    path.write_bytes(pickle.dumps(checkpoint, protocol=2))


@pytest.mark.parametrize("save", [torch.save, pickled])
def test_code_in_a_checkpoint_does_not_run(save, tmp_path, capsys):
    write(tmp_path, "model_1.pt")
    checkpoint = {"iter": 2, "actor_state_dict": {"w": torch.ones(1)}, "x": Code()}
    save(checkpoint, tmp_path / "model_2.pt")
    reason = "holds .*print, expected" if save is torch.save else "cannot be read"
    with pytest.warns(UserWarning, match=rf"model_2\.pt.*{reason}"):
        assert latest_checkpoint(tmp_path) == tmp_path / "model_1.pt"
    assert capsys.readouterr().out == ""


def test_the_last_written_file_of_an_iteration_is_the_latest(tmp_path):
    write(tmp_path, "model_4.pt", "safe_4.pt", "safe_3.pt")
    for name, time in (("model_4.pt", 2), ("safe_4.pt", 1), ("safe_3.pt", 3)):
        os.utime(tmp_path / name, (time, time))
    assert latest_checkpoint(tmp_path).name == "model_4.pt"
    os.utime(tmp_path / "safe_4.pt", (3, 3))
    assert latest_checkpoint(tmp_path).name == "safe_4.pt"


def test_a_folder_without_a_valid_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no valid checkpoint.*\(0 of that form"):
        latest_checkpoint(tmp_path)
    empty(tmp_path / "model_3.pt")
    with (
        pytest.warns(UserWarning, match=r"model_3\.pt"),
        pytest.raises(ValueError, match=r"holds no valid checkpoint.*\(1 of that form"),
    ):
        latest_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"run folder '.*moved' does not exist"):
        checkpoint_file(tmp_path / "moved" / "latest")


def test_a_run_is_named_by_its_folder_and_latest_and_a_file_by_itself(tmp_path):
    write(tmp_path, "model_1.pt", "model_2.pt")
    newest = tmp_path / "model_2.pt"
    assert checkpoint_file(tmp_path) == checkpoint_file(f"{tmp_path}/latest") == newest
    assert checkpoint_file(tmp_path / "model_1.pt") == tmp_path / "model_1.pt"
    assert checkpoint_file("moved.pt").name == "moved.pt"
    (tmp_path / "latest").symlink_to("model_1.pt")
    assert checkpoint_file(tmp_path / "latest") == tmp_path / "latest"
