"""Presets: the shipped ones load, a wrong one is refused by name."""

import pytest
import yaml

from scripts.pipeline.presets import DEMO, FINETUNE, load_preset

DEMO_MJLAB, DEMO_PUP, DEMO_CAMERA, DEMO_SEEK = (
    DEMO.with_name(f"demo-{name}.yaml") for name in ("mjlab", "pup", "camera", "seek")
)


def write(tmp_path, **changes):
    values = yaml.safe_load(DEMO.read_text())
    for path, value in changes.items():
        *sections, key = path.split("__")
        target = values
        for section in sections:
            target = target[int(section) if section.isdigit() else section]
        target[key] = value
    file = tmp_path / "preset.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


@pytest.mark.parametrize(
    ("file", "share"),
    [(DEMO, 0.99), (DEMO_MJLAB, 0.95), (DEMO_PUP, 0.9), (DEMO_CAMERA, 0.98), (DEMO_SEEK, 0.85)],
)
def test_shipped_preset_meets_the_demos_promises(file, share):
    preset = load_preset(file)
    policies = preset.policies
    assert list(policies) == ["teacher", "student", "memoryless"]
    assert preset.teacher == "teacher"
    assert preset.evaluation.episodes >= 100
    assert preset.verdicts[0].policy == "student"
    assert preset.verdicts[0].min_share_of_teacher >= share
    assert preset.verdicts[1].policy == "memoryless"
    memoryless = preset.verdicts[1]
    assert memoryless.clearly_below == "student"
    assert policies["student"].seed == policies["memoryless"].seed
    assert preset.evaluation.seed not in {policy.seed for policy in policies.values()}


def test_presets_name_their_platform():
    files = (DEMO, DEMO_MJLAB, DEMO_PUP, FINETUNE)
    platforms = [load_preset(file).platform for file in files]
    assert platforms == ["isaaclab", "mjlab", "isaaclab", "isaaclab"]


def test_finetuning_goes_on_where_the_demo_ends():
    demo, finetune = load_preset(DEMO), load_preset(FINETUNE)
    for name in ("teacher", "student"):
        ours, theirs = finetune.policies[name], demo.policies[name]
        assert (ours.agent, ours.iterations, ours.seed) == (
            theirs.agent,
            theirs.iterations,
            theirs.seed,
        )
    assert finetune.policies["finetuned"].starts_from == "student"
    assert finetune.policies["scratch"].starts_from is None
    assert finetune.evaluation == demo.evaluation


def test_change_is_read(tmp_path):
    preset = load_preset(write(tmp_path, policies__teacher__iterations=3))
    assert preset.policies["teacher"].iterations == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_env": 4}, r"preset.yaml: num_env is unknown, expected a key that"),
        (
            {"policies__teacher__iteration": 4},
            r"preset.yaml: policies: teacher: iteration is unknown",
        ),
        ({"policies": 4}, "policies is 4, expected a valid dict"),
        ({"policies__teacher": 4}, "policies: teacher is 4, expected a valid dict"),
        ({"num_envs": "many"}, "num_envs is 'many', expected a valid integer"),
        ({"num_envs": True}, "num_envs is True, expected a valid integer"),
        ({"policies__teacher__iterations": 0}, "teacher: iterations is 0, expected greater than 0"),
        ({"policies__student__starts_from": 4}, "starts_from is 4, expected a valid string"),
        (
            {"verdicts__0__min_share_of_teacher": 0},
            "1: min_share_of_teacher is 0, expected greater than 0",
        ),
        ({"policies__teacher__title": 4}, "title is 4, expected a valid string"),
        ({"policies__teacher__overrides": "a=1"}, "overrides is 'a=1', expected a valid list"),
        ({"evaluation__episodes": 1}, "episodes is 1, expected greater than or equal to 2"),
        ({"evaluation": None}, "evaluation is None, expected a valid dict"),
        ({"export__tolerance": -1.0}, "tolerance is -1.0, expected greater than 0"),
        ({"verdicts": 0.95}, "verdicts is 0.95, expected a valid list"),
        ({"verdicts__0__share": 1.0}, "verdicts: 1: share is unknown"),
    ],
)
def test_wrong_preset_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_preset(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"policies__student__starts_from": "techer"},
            r"policies: student: starts_from is 'techer', expected one of .*\['teacher'\]",
        ),
        (
            {"policies__teacher__starts_from": "student"},
            r"policies: teacher: starts_from is 'student', expected one of .*: \[\]",
        ),
        ({"export__policy": "x"}, "export: policy is 'x', expected one of"),
        (
            {"ablations": {"blind": {"title": "", "policy": "x", "override": "a=0"}}},
            "ablations: blind: policy is 'x', expected one of",
        ),
        ({"platform": "x"}, "platform is 'x', expected 'isaaclab' or 'mjlab'"),
        ({"verdicts__0__policy": "x"}, "verdicts: 1: policy is 'x', expected one of"),
        ({"verdicts__1__clearly_below": "x"}, "verdicts: 2: clearly_below is 'x', expected one of"),
    ],
)
def test_unknown_name_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_preset(write(tmp_path, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"verdicts": [{"policy": "student"}]},
        {"verdicts__0__not_below": "teacher"},
        {"verdicts__1__not_below": "student"},
        {"verdicts__0__max_share_of_teacher": 0.8},
    ],
)
def test_verdict_says_exactly_one_thing(tmp_path, changes):
    rules = "min_share_of_teacher, max_share_of_teacher, clearly_below, not_below"
    with pytest.raises(ValueError, match=rf"verdicts: \d .*expected exactly one of {rules}"):
        load_preset(write(tmp_path, **changes))


@pytest.mark.parametrize("text", ["- a", "a: [", "4"])
def test_file_that_is_no_mapping_is_refused(tmp_path, text):
    file = tmp_path / "preset.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"preset\.yaml (is|cannot be read)"):
        load_preset(file)


def test_missing_key_is_named(tmp_path):
    file = tmp_path / "preset.yaml"
    values = yaml.safe_load(DEMO.read_text())
    del values["policies"]["student"]["seed"]
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(ValueError, match=r"preset\.yaml: policies: student: seed is missing"):
        load_preset(file)
