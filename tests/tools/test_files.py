"""Files are complete or as before."""

import pytest

from rsl_tbptt.files import complete, write_json


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


def half_written(path):
    with complete(path) as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt


def test_a_write_that_breaks_off_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        half_written(path)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]
