"""Studies over seeds: what a file may contain, and what is trained for it."""

import pytest
import yaml

from scripts.pipeline.presets import REPOSITORY
from scripts.pipeline.run_folder import RunFolder
from scripts.pipeline.stages import policy_stages
from scripts.pipeline.study import load_study, one_seed_each

CURVES = REPOSITORY / "configs" / "curves.yaml"


def write(tmp_path, **changes):
    values = yaml.safe_load(CURVES.read_text()) | changes
    values["preset"] = str(CURVES.parent / values["preset"])
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_shipped_study_stays_within_its_own_limit():
    study, preset = load_study(CURVES)
    iterations = {name: policy.iterations for name, policy in preset.policies.items()}
    limit = study.max_step_ratio * iterations[preset.teacher]
    assert iterations["scratch"] <= limit
    assert iterations["student"] + iterations["finetuned"] <= limit
    assert len(study.seeds) >= 3
    assert preset.evaluation.seed not in study.seeds


def test_iterations_replace_the_presets(tmp_path):
    _, preset = load_study(write(tmp_path, iterations={"scratch": 7}))
    assert preset.policies["scratch"].iterations == 7
    assert preset.policies["teacher"].iterations == 80


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": [1]}, r"study.yaml: seed is unknown"),
        ({"seeds": 3}, "seeds is 3, expected a valid list"),
        ({"seeds": []}, r"seeds is \[\]: List should have at least 1 item"),
        ({"seeds": [-1]}, r"seeds: 1 is -1, expected greater than or equal to 0"),
        ({"iterations": [100]}, r"iterations is \[100\], expected a valid dict"),
        ({"iterations": {"studnet": 100}}, "iterations: 'studnet' is none of"),
        ({"iterations": {"student": 0}}, "iterations: student is 0, expected greater than 0"),
        ({"max_step_ratio": 0}, "max_step_ratio is 0, expected greater than 0"),
        ({"preset": "absent.yaml"}, "absent.yaml cannot be read"),
    ],
)
def test_wrong_study_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_study(write(tmp_path, **changes))


@pytest.fixture
def stages(tmp_path):
    _, preset = load_study(CURVES)
    run = RunFolder(tmp_path / "run")
    return {s.name: s for s in policy_stages(run, one_seed_each(preset, [1, 2, 3]), "cpu")}


def test_every_policy_is_trained_and_evaluated_with_every_seed(stages):
    policies = ("teacher", "student", "finetuned", "scratch")
    names = [f"{policy}-{seed}" for seed in (1, 2, 3) for policy in policies]
    assert list(stages) == [*names, *(f"evaluate-{name}" for name in names)]


def test_each_seed_has_its_own_teacher_and_student(stages):
    assert stages["student-2"].needs == ("teacher-2",)
    assert stages["finetuned-3"].needs == ("student-3",)
    assert stages["scratch-3"].needs == ()
    command = stages["finetuned-2"].command({"student-2": "s/model_1.pt"})
    assert command[command.index("--checkpoint") + 1] == "s/model_1.pt"
    assert command[command.index("--seed") + 1] == "2"
    assert command[command.index("--run_name") + 1] == "finetuned-2"
