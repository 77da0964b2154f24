"""Files are either complete or unchanged."""

import pytest

from rsl_tbptt.files import output_path, read_config, write_json


def test_json_is_complete_or_as_before(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert path.read_text() == '{\n "a": 1\n}\n'
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


def test_a_default_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "other.json").write_text('"mark"')
    default = tmp_path / "result.json"
    default.symlink_to(tmp_path / "other.json")
    assert output_path(None, default, b'"mark"') == tmp_path / "result-2.json"
    with pytest.raises(ValueError, match="which this command has not written"):
        output_path(default, default, b'"mark"')


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
