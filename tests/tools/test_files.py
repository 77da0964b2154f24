"""Files are either complete or unchanged."""

import os
import stat

import pytest

from rsl_tbptt.files import complete, output_path, write_json


def test_json_is_complete_or_as_before(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_is_replaced_when_all_is_written(tmp_path):
    path = tmp_path / "folder" / "model.onnx"
    for text in ("old", "new"):
        with complete(path) as unfinished:
            unfinished.write_text(text)
            assert unfinished.suffix == ".onnx"
    assert path.read_text() == "new"
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.skipif(os.name != "posix", reason="folders cannot be opened")
def test_a_new_name_reaches_the_disk_before_the_writer_continues(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def note(descriptor):
        names = sorted(os.listdir(tmp_path))
        synced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)
        if synced[-1] == "folder":
            assert names == ["value.json"]  # renamed before

    monkeypatch.setattr(os, "fsync", note)
    write_json(tmp_path / "value.json", 1)
    assert synced == ["file", "folder"]


def test_a_file_system_that_cannot_sync_folders_does_not_fail_the_write(tmp_path, monkeypatch):
    def fail(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    write_json(tmp_path / "value.json", 1)
    assert (tmp_path / "value.json").read_text() == "1\n"


def half_written(path):
    with complete(path) as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt


def test_an_interrupted_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        half_written(path)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("name", ["exported", "evaluation.json"])
def test_results_replace_nothing_at_the_default_place(tmp_path, name):
    default = tmp_path / "run" / name
    stem, suffix = default.stem, default.suffix
    for expected in (name, f"{stem}-2{suffix}", f"{stem}-3{suffix}"):
        path = output_path(None, default)
        assert path == default.with_name(expected)
        assert path.parent.is_dir()
        (path if suffix else path / "policy.onnx").write_text("kept")
    assert output_path(default, tmp_path / "other" / name) == default


def test_an_empty_folder_is_used(tmp_path):
    (tmp_path / "exported").mkdir()
    assert output_path(None, tmp_path / "exported") == tmp_path / "exported"


@pytest.mark.parametrize("name", ["folder", "evaluation.json"])
def test_an_output_that_cannot_be_written_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    path = tmp_path / "file" / name
    with pytest.raises(ValueError, match=f"The output is .*{name}, expected a .*Name another one"):
        output_path(path, tmp_path / name)
    if path.suffix:
        with pytest.raises(ValueError, match=r"expected a file that can be written: .*directory"):
            output_path(tmp_path / "directory", tmp_path / name)
