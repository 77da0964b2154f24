"""Experiments and sweeps: the shipped ones keep their promises, a wrong file is refused by name."""

import pytest
import yaml

from scripts.pipeline.experiments import DEMO, FINETUNE, REPOSITORY, load_experiment
from scripts.pipeline.stages import policy_stages
from scripts.pipeline.sweep import load_sweep, one_seed_each, sweep_stages

CONFIGS = REPOSITORY / "configs"
CURVES = CONFIGS / "learning_curves.yaml"
SHARES = {"demo": 0.99, "demo-mjlab": 0.95, "demo-pup": 0.9, "demo-camera": 0.98, "demo-seek": 0.85}


def write(tmp_path, **changes):
    """Write the demo's experiment with changes, whose names have __ between sections."""
    values = yaml.safe_load(DEMO.read_text())
    for path, value in changes.items():
        *sections, key = path.split("__")
        target = values
        for section in sections:
            target = target[int(section) if section.isdigit() else section]
        target[key] = value
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


@pytest.mark.parametrize("name", SHARES)
def test_shipped_experiment_meets_the_demos_promises(name):
    experiment = load_experiment(CONFIGS / f"{name}.yaml")
    policies = experiment.policies
    assert list(policies) == ["teacher", "student", "memoryless"]
    assert experiment.teacher == "teacher"
    assert experiment.platform == ("mjlab" if name == "demo-mjlab" else "isaaclab")
    assert experiment.evaluation.episodes >= 100
    first, second = experiment.acceptance[:2]
    assert first.policy == "student"
    assert (first.min_share_of_teacher or 0) >= SHARES[name]
    assert (second.policy, second.clearly_below) == ("memoryless", "student")
    assert policies["student"].seed == policies["memoryless"].seed
    assert experiment.evaluation.seed not in {policy.seed for policy in policies.values()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_env": 4}, r"experiment.yaml: num_env is unknown, expected a key that"),
        ({"policies__teacher__iteration": 4}, r"policies: teacher: iteration is unknown"),
        (
            {"policies__student": {"title": "", "agent": "", "iterations": 1}},
            "experiment.yaml: policies: student: seed is missing",
        ),
        ({"num_envs": "many"}, "num_envs is 'many', expected a valid integer"),
        ({"policies__teacher__iterations": 0}, "teacher: iterations is 0, expected greater than 0"),
        (
            {"policies__student__starts_from": "techer"},
            r"policies: student: starts_from is 'techer', expected one of .*\['teacher'\]",
        ),
        (
            {"policies__teacher__starts_from": "student"},
            r"policies: teacher: starts_from is 'student', expected one of .*: \[\]",
        ),
        ({"evaluation__episodes": 1}, "episodes is 1, expected greater than or equal to 2"),
        ({"export__policy": "x"}, "export: policy is 'x', expected one of"),
        (
            {"ablations": {"blind": {"title": "", "policy": "x", "override": "a=0"}}},
            "ablations: blind: policy is 'x', expected one of",
        ),
        ({"platform": "x"}, "platform is 'x', expected 'isaaclab' or 'mjlab'"),
        ({"acceptance__0__share": 1.0}, "acceptance: 1: share is unknown"),
        ({"acceptance__1__clearly_below": "x"}, "acceptance: 2: clearly_below is 'x', expected"),
    ],
)
def test_wrong_experiment_is_refused(tmp_path, changes, message):
    assert load_experiment(write(tmp_path, num_envs=3)).num_envs == 3
    with pytest.raises(ValueError, match=message):
        load_experiment(write(tmp_path, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"acceptance": [{"policy": "student"}]},
        {"acceptance__0__max_share_of_teacher": 0.8},
    ],
)
def test_an_acceptance_check_says_exactly_one_thing(tmp_path, changes):
    rules = "min_share_of_teacher, max_share_of_teacher, clearly_below, not_below"
    with pytest.raises(ValueError, match=rf"acceptance: \d .*expected exactly one of {rules}"):
        load_experiment(write(tmp_path, **changes))


@pytest.mark.parametrize("text", ["- a", "a: [", "4"])
def test_file_that_is_no_mapping_is_refused(tmp_path, text):
    file = tmp_path / "experiment.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"experiment\.yaml (is|cannot be read)"):
        load_experiment(file)


def write_sweep(tmp_path, **changes):
    values = yaml.safe_load(CURVES.read_text()) | {"experiment": str(FINETUNE)} | changes
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


def test_what_a_sweep_says_replaces_the_experiments(tmp_path):
    policies = {
        "teacher": {},
        "student": {"iterations": 7},
        "other": {"like": "finetuned", "overrides": ["a=1"]},
        "same": {"like": "finetuned"},
        "guided": {"like": "scratch", "starts_from": "teacher"},
    }
    loaded = load_sweep(write_sweep(tmp_path, policies=policies))[1].policies
    assert [*loaded] == [*policies]
    assert loaded["student"].iterations == 7
    assert loaded["teacher"].iterations == 80
    assert loaded["other"].overrides == ["a=1"]
    assert loaded["same"].overrides == ["env.compute_final_obs=true"]
    assert loaded["other"].starts_from == "student"
    assert loaded["guided"].starts_from == "teacher"


def test_shipped_sweeps_of_distillation_differ_in_nothing_but_the_algorithm():
    sweeps = [load_sweep(CONFIGS / f"distillation_{end}.yaml") for end in ("curves", "grid")]
    policies = [policy for _, experiment in sweeps for policy in experiment.policies.items()]
    students = [policy for name, policy in policies if name != "teacher"]
    assert {p.agent for p in students} == {"rsl_rl_distillation_recurrent_cfg_entry_point"}
    assert {p.iterations for p in students} == {100}
    words = [word for _, policy in policies for word in policy.overrides]
    assert all(word.startswith("agent.algorithm.") for word in words)
    seeds = [seed for sweep, _ in sweeps for seed in sweep.seeds]
    assert len(seeds) == len(set(seeds))  # the grid's seed reports no result
    (_, curves), (_, grid) = sweeps
    tried = [sorted(policy.overrides) for policy in grid.policies.values()]
    assert sorted(curves.policies["rsl_rl_tuned"].overrides) in tried
    assert sorted(curves.policies["rsl_rl"].overrides) in tried


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": [1]}, r"sweep.yaml: seed is unknown"),
        ({"seeds": []}, r"seeds is \[\]: List should have at least 1 item"),
        ({"policies": {"studnet": {}}}, "policies: studnet is like 'studnet', expected one of"),
        ({"policies": {"student": {}}}, r"student is like 'student', .* before it: \[\]"),
        (
            {"policies": {"teacher": {}, "a": {"like": "scratch", "starts_from": "student"}}},
            r"a is like 'scratch'.*one before it: \['teacher'\]",
        ),
        ({"at_least": {"return": 1}}, r"at_least: return: \[key\] is 'return', expected 'share'"),
        ({"experiment": "absent.yaml"}, "absent.yaml cannot be read"),
        *(
            ({"evaluate_after": {name: after}}, rf"evaluate_after: {name} is .*'teacher': 80")
            for name, after in (("scratch", [151]), ("nobody", [1]), ("teacher", [1, 81]))
        ),
    ],
)
def test_wrong_sweep_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_sweep(write_sweep(tmp_path, **changes))


def test_every_policy_is_trained_and_evaluated_with_every_seed_and_its_teacher(tmp_path):
    repeated = one_seed_each(load_sweep(CURVES)[1], [1, 2, 3])
    stages = {stage.name: stage for stage in policy_stages(repeated, tmp_path, "cpu")}
    policies = ("teacher", "student", "finetuned", "scratch")
    names = [f"{policy}-{seed}" for seed in (1, 2, 3) for policy in policies]
    assert list(stages) == [*names, *(f"evaluate-{name}" for name in names)]
    assert stages["student-2"].needs == ("teacher-2",)
    assert stages["finetuned-3"].needs == ("student-3",)
    assert stages["scratch-3"].needs == ()
    command = stages["finetuned-2"].command({"student-2": "s/model_1.pt"})
    for option, value in (("checkpoint", "s/model_1.pt"), ("seed", "2"), ("run_name", None)):
        assert command[command.index(f"--{option}") + 1] == (value or "finetuned-2")


def test_policies_are_evaluated_on_the_way_with_the_checkpoints_of_those_iterations(tmp_path):
    file = write_sweep(tmp_path, seeds=[3, 4], evaluate_after={"scratch": [1, 20]})
    *usual, a, b, c, d = sweep_stages(*load_sweep(file), tmp_path, "cpu")
    names = [f"evaluate-scratch-{s}-after-{i}" for s in (3, 4) for i in (1, 20)]
    assert [stage.name for stage in (a, b, c, d)] == names
    assert not any("after" in stage.name for stage in usual)
    assert d.needs == ("scratch-4",)
    words = d.command({"scratch-4": "logs/x/model_149.pt"})
    assert "--checkpoint=logs/x/model_19.pt" in words
    assert "--output=evaluation/scratch-4-after-20.json" in words
