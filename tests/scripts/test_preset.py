"""The demo's preset: the shipped one loads, a wrong one is refused by name."""

import pytest
import yaml
from _preset import DEFAULT_PRESET, load_preset


def write(tmp_path, **changes):
    values = yaml.safe_load(DEFAULT_PRESET.read_text())
    for path, value in changes.items():
        *sections, key = path.split("__")
        target = values
        for section in sections:
            target = target[section]
        target[key] = value
    file = tmp_path / "preset.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_shipped_preset_meets_the_demos_promises():
    preset = load_preset(DEFAULT_PRESET)
    assert preset.evaluation.episodes >= 100
    assert preset.min_share_of_teacher >= 0.95
    assert preset.student.seed == preset.memoryless.seed
    assert preset.evaluation.seed not in {preset.teacher.seed, preset.student.seed}


def test_change_is_read(tmp_path):
    assert load_preset(write(tmp_path, teacher__iterations=3)).teacher.iterations == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_env": 4}, r"unknown keys \['num_env'\]"),
        ({"teacher__iteration": 4}, r"teacher has unknown keys \['iteration'\]"),
        ({"teacher": 4}, "teacher is 4, expected a mapping"),
        ({"num_envs": "many"}, "num_envs is 'many', expected a whole number"),
        ({"num_envs": True}, "num_envs is True, expected a whole number"),
        ({"teacher__iterations": 0}, "iterations is 0, expected at least 1"),
        ({"evaluation__episodes": 1}, "episodes is 1, expected at least 2"),
        ({"export__tolerance": -1.0}, "tolerance is -1.0, expected a positive number"),
    ],
)
def test_wrong_preset_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_preset(write(tmp_path, **changes))


def test_missing_key_is_named(tmp_path):
    file = tmp_path / "preset.yaml"
    values = yaml.safe_load(DEFAULT_PRESET.read_text())
    del values["student"]["seed"]
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(ValueError, match=r"student has unknown keys \[\] and lacks \['seed'\]"):
        load_preset(file)
