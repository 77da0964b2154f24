"""Studies over seeds: what a file may contain, and what is trained for it."""

import pytest
import yaml

from scripts.pipeline.presets import REPOSITORY
from scripts.pipeline.run_folder import RunFolder
from scripts.pipeline.stages import policy_stages
from scripts.pipeline.study import load_study, one_seed_each, study_stages

CONFIGS = REPOSITORY / "configs"
CURVES = CONFIGS / "learning_curves.yaml"


def write(tmp_path, **changes):
    values = yaml.safe_load(CURVES.read_text()) | changes
    values["preset"] = str(CURVES.parent / values["preset"])
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


def test_shipped_study_stays_within_its_own_limit():
    study, preset = load_study(CURVES)
    iterations = {name: policy.iterations for name, policy in preset.policies.items()}
    limit = study.at_most["steps"] * iterations[preset.teacher]
    assert iterations["scratch"] <= limit
    assert iterations["student"] + iterations["finetuned"] <= limit
    assert len(study.seeds) >= 3
    assert preset.evaluation.seed not in study.seeds


def test_what_a_study_says_replaces_the_presets(tmp_path):
    shorter = {"teacher": {}, "student": {"iterations": 7}}
    _, preset = load_study(write(tmp_path, policies=shorter))
    assert [*preset.policies] == ["teacher", "student"]
    assert preset.policies["student"].iterations == 7
    assert preset.policies["teacher"].iterations == 80


def test_policy_like_another_has_its_values_but_those_it_names(tmp_path):
    policies = {
        "teacher": {},
        "student": {},
        "other": {"like": "finetuned", "overrides": ["a=1"]},
        "same": {"like": "finetuned"},
    }
    _, preset = load_study(write(tmp_path, policies=policies))
    assert preset.policies["other"].overrides == ["a=1"]
    assert preset.policies["same"].overrides == ["env.compute_final_obs=true"]
    assert preset.policies["other"].starts_from == "student"


def test_policy_may_start_from_another_than_the_presets(tmp_path):
    policies = {"teacher": {}, "guided": {"like": "scratch", "starts_from": "teacher"}}
    _, preset = load_study(write(tmp_path, policies=policies))
    assert preset.policies["guided"].starts_from == "teacher"
    policies["guided"]["starts_from"] = "student"
    with pytest.raises(ValueError, match=r"guided is like 'scratch'.*one before it: \['teacher'\]"):
        load_study(write(tmp_path, policies=policies))


def test_shipped_studies_of_distillation_differ_in_nothing_but_the_algorithm():
    studies = [load_study(CONFIGS / f"distillation_{end}.yaml") for end in ("curves", "grid")]
    agents = {
        p.agent for _, preset in studies for n, p in preset.policies.items() if n != "teacher"
    }
    iterations = {p.iterations for _, s in studies for n, p in s.policies.items() if n != "teacher"}
    words = [w for _, preset in studies for p in preset.policies.values() for w in p.overrides]
    assert agents == {"rsl_rl_distillation_recurrent_cfg_entry_point"}
    assert iterations == {100}
    assert all(word.startswith("agent.algorithm.") for word in words)
    seeds = [seed for study, _ in studies for seed in study.seeds]
    assert len(seeds) == len(set(seeds))  # the grid's seed reports no result


def test_tuned_rsl_rl_is_of_the_grid():
    _, curves = load_study(CONFIGS / "distillation_curves.yaml")
    _, grid = load_study(CONFIGS / "distillation_grid.yaml")
    tried = [sorted(policy.overrides) for policy in grid.policies.values()]
    assert sorted(curves.policies["rsl_rl_tuned"].overrides) in tried
    assert sorted(curves.policies["rsl_rl"].overrides) in tried


def test_policies_are_evaluated_on_the_way_with_the_checkpoints_of_those_iterations(tmp_path):
    study, preset = load_study(write(tmp_path, seeds=[3, 4], evaluate_after={"scratch": [1, 20]}))
    stages = study_stages(RunFolder(tmp_path / "run"), study, preset, "cpu")
    *usual, a, b, c, d = stages
    names = [f"evaluate-scratch-{s}-after-{i}" for s in (3, 4) for i in (1, 20)]
    assert [stage.name for stage in (a, b, c, d)] == names
    assert not any("after" in stage.name for stage in usual)
    assert d.needs == ("scratch-4",)
    words = d.command({"scratch-4": "logs/x/model_149.pt"})
    assert "--checkpoint=logs/x/model_19.pt" in words
    assert "--output=evaluation/scratch-4-after-20.json" in words


@pytest.mark.parametrize("asked", [{"scratch": [151]}, {"nobody": [1]}, {"teacher": [1, 81]}])
def test_evaluations_on_the_way_are_of_the_studys_trainings(tmp_path, asked):
    name = next(iter(asked))
    with pytest.raises(ValueError, match=rf"evaluate_after: {name} is .*'teacher': 80"):
        load_study(write(tmp_path, evaluate_after=asked))


@pytest.mark.parametrize("name", ["camera_curves", "pup_curves", "seek_curves"])
def test_study_of_a_demo_trains_and_evaluates_its_policies_alone(name):
    study, preset = load_study(CONFIGS / f"{name}.yaml")
    policies = [*preset.evaluated]
    assert policies[:3] == ["teacher", "student", "memoryless"]
    assert policies == [*preset.policies]
    seeded = one_seed_each(preset, study.seeds)
    assert [*seeded.evaluated] == [f"{name}-{s}" for s in study.seeds for name in policies]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": [1]}, r"study.yaml: seed is unknown"),
        ({"seeds": 3}, "seeds is 3, expected a valid list"),
        ({"seeds": []}, r"seeds is \[\]: List should have at least 1 item"),
        ({"seeds": [-1]}, r"seeds: 1 is -1, expected greater than or equal to 0"),
        ({"policies": {}}, r"policies is \{\}: Dictionary should have at least 1 item"),
        ({"policies": {"studnet": {}}}, "policies: studnet is like 'studnet', expected one of"),
        ({"policies": {"student": {}}}, r"student is like 'student', .* before it: \[\]"),
        (
            {"policies": {"teacher": {"iterations": 0}}},
            "policies: teacher: iterations is 0, expected greater than 0",
        ),
        ({"at_most": {"steps": 0}}, "at_most: steps is 0, expected greater than 0"),
        ({"at_least": {"return": 1}}, r"at_least: return: \[key\] is 'return', expected 'share'"),
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
