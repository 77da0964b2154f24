"""Files are either complete or unchanged."""

import os
import stat

import pytest

from rsl_tbptt.files import complete, output_path, read_config, write_json


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


OTHERS = {
    "a file": lambda path: path.write_text("mine"),
    "a link to a file": lambda path: path.symlink_to(path.parent / "kept"),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "new"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_only_results_of_the_same_kind_are_replaced(tmp_path, other):
    (tmp_path / "kept").write_text("mine")
    path, default = tmp_path / "result.json", tmp_path / "default.json"
    path.write_text('{"mark": 1}')
    assert output_path(path, default, b'"mark"') == path
    path.write_text("")
    assert output_path(path, default, b'"mark"') == path
    path.unlink()
    other(path)
    with pytest.raises(ValueError, match=r"which this command has not written, expected a new"):
        output_path(path, default, b'"mark"')
    assert output_path(path, default) == path


def test_only_an_earlier_folder_of_the_same_kind_is_replaced(tmp_path):
    folder, arguments = tmp_path / "out", (tmp_path / "default", b'"mark"', "about.json")
    assert output_path(folder, *arguments) == folder
    (folder / "README.md").write_text("mine")
    with pytest.raises(ValueError, match=r"out, which this command has not written"):
        output_path(folder, *arguments)
    (folder / "about.json").write_text('{"mark": 1}')
    assert output_path(folder, *arguments) == folder
    (folder / "policy.onnx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"out, which this command has not written"):
        output_path(folder, *arguments)


@pytest.mark.parametrize("text", ["a: &a [*a]", "[" * 2000, "{[1]: 2}", "a: 2024-99-99"])
def test_a_config_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"a\.yaml' cannot be read"):
        read_config(tmp_path / "a.yaml")


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
