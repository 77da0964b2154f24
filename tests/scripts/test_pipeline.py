"""Experiments: their files, the commands of their stages, what those depend on, and the report."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils.tensorboard import SummaryWriter

from rsl_tbptt.files import write_json
from rsl_tbptt.tools.simulate.evaluate import summarise
from scripts.pipeline import __main__ as pipeline
from scripts.pipeline.experiments import DEMO, FINETUNE, AcceptanceCheck, load_experiment
from scripts.pipeline.report import collect, format_table
from scripts.pipeline.run import Record, run_stages
from scripts.pipeline.stages import pipeline_stages

SHARES = {"demo": 0.99, "demo-mjlab": 0.95, "demo-camera": 0.98, "demo-go1": 0.7}
PLATFORM_OF = {"demo-mjlab": "mjlab", "demo-go1": "envpool"}
MJLAB, GO1 = (DEMO.with_name(f"demo-{name}.yaml") for name in ("mjlab", "go1"))


@pytest.fixture
def changed(tmp_path):
    """Load an experiment with changes, whose names have __ between sections."""

    def load(file=DEMO, **changes):
        values, path = yaml.safe_load(file.read_text()), tmp_path / "experiment.yaml"
        for name, value in changes.items():
            *sections, key = name.split("__")
            target = values
            for section in sections:
                target = target[int(section) if section.isdigit() else section]
            target[key] = value
        path.write_text(yaml.safe_dump(values, sort_keys=False))
        return load_experiment(path)

    return load


def lay_out(experiment, device="cpu"):
    return {stage.name: stage for stage in pipeline_stages(experiment, device)}


@pytest.mark.parametrize("name", SHARES)
def test_a_shipped_experiment_meets_the_docs_claims(name):
    experiment = load_experiment(DEMO.with_name(f"{name}.yaml"))
    policies = experiment.policies
    assert list(policies) == ["teacher", "student", "memoryless"]
    assert experiment.platform == PLATFORM_OF.get(name, "isaaclab")
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
        ({"num_env": 4}, "num_env"),
        ({"video": {"seconds": 5}}, r"video\n +Extra inputs are not permitted"),
        ({"policies__teacher__iterations": 0}, r"policies\.teacher\.iterations"),
        ({"policies__student__starts_from": "x"}, r"student\.starts_from is 'x'.*\['teacher'\]"),
        ({"policies__teacher__starts_from": "student"}, r"teacher\.starts_from is 'student'"),
        ({"export__policy": "x"}, r"export\.policy is 'x', expected one of"),
        ({"acceptance__1__clearly_below": "x"}, r"acceptance\.1\.clearly_below is 'x', expected"),
        ({"acceptance": [{"policy": "student"}]}, "exactly one of min_share_of_teacher, max_share"),
    ],
)
def test_a_wrong_experiment_is_refused(changed, changes, message):
    assert changed(num_envs=3).num_envs == 3
    with pytest.raises(ValueError, match=rf"experiment\.yaml cannot be read: (.|\n)*{message}"):
        changed(**changes)


@pytest.mark.parametrize(
    ("file", "device", "words"),
    [
        (
            DEMO,
            "cuda:0",
            "isaaclab train --rl_library rsl_rl --task Tbptt-Cartpole-Occluded --agent"
            " rsl_rl_cfg_entry_point --num_envs 256 --max_iterations 80 --seed 1 --run_name teacher"
            " physics=newton_mjwarp --device cuda:0 agent.device=cuda:0",
        ),
        (
            MJLAB,
            "cuda:1",
            "train Tbptt-Cartpole-Occluded-Teacher --env.scene.num-envs 512 --agent.max-iterations"
            " 80 --agent.seed 1 --agent.run-name teacher --gpu-ids '[1]'",
        ),
        (
            DEMO.with_name("go1_policies.yaml"),
            "cpu",
            "python -m rsl_tbptt_tasks.envpool Tbptt-Go1-Flat-Real recurrent --num-envs 256"
            " --iterations 80 --seed 4 --run-name scratch --device cpu env.num_threads=1",
        ),
    ],
)
def test_a_training_is_the_platforms_command(file, device, words):
    stages = lay_out(load_experiment(file), device)
    command = stages["scratch" if "scratch" in stages else "teacher"].command({})
    assert re.sub(r"(iterations) \d+", r"\1 80", shlex.join(command)) == words


@pytest.mark.parametrize("file", [DEMO, MJLAB], ids=["isaaclab", "mjlab"])
def test_a_checkpoint_goes_where_an_override_says_and_nowhere_else(changed, file):
    overrides = ["a=1", "agent.teacher={checkpoint}"]
    changes = {"overrides": overrides, "num_envs": 9, "task_overrides": ["env.a=1"]}
    experiment = changed(file, **{f"policies__student__{k}": v for k, v in changes.items()})
    words = lay_out(experiment)["student"].command({"teacher": "a/model_1.pt"})
    assert words[-3:] == ["env.a=1", "a=1", "agent.teacher=a/model_1.pt"]
    assert "model_1.pt" not in " ".join(words[:-1])
    assert [a for a, b in zip(words[1:], words, strict=False) if b.endswith("envs")] == ["9"]


def test_a_training_leaves_the_newest_checkpoint_of_its_last_iteration(tmp_path):
    """A run whose name only begins with its own does not count."""
    student = lay_out(load_experiment(DEMO))["student"]
    runs = (
        "1_student/model_59",
        "2_student/model_59",
        "3_student/model_58",
        "4_student_o/model_59",
    )
    names = [f"logs/rsl_rl/e/2026-01-01_00-00-0{run}.pt" for run in runs]
    lines = "".join(f"mkdir -p $(dirname {n}); touch {n}; sleep 0.02; " for n in names)
    stage = replace(student, needs=(), command=lambda _: ["sh", "-c", lines])
    assert run_stages([stage], tmp_path, "cpu")["student"].output == names[1]


def test_a_policy_that_was_trained_before_is_copied(tmp_path):
    stages = lay_out(load_experiment(GO1))
    teacher = run_stages([stages["teacher"]], tmp_path, "cpu")["teacher"].output
    assert Path(teacher).parts[:3] == ("logs", "rsl_rl", "tbptt_go1_flat_real")
    (tmp_path / "stages" / "teacher.json").unlink()
    assert run_stages([stages["teacher"]], tmp_path, "cpu")["teacher"].output == teacher
    words = stages["student"].command({"teacher": teacher})
    assert words[words.index("--checkpoint") + 1] == teacher
    assert (tmp_path / teacher).with_name("params").is_dir()


POLICIES = ("teacher", "student", "memoryless")
EVALUATIONS = {f"evaluate-{name}" for name in POLICIES}
OF_STUDENT = {"memory", "export"}
MEMORYLESS = {"memoryless", "evaluate-memoryless"}
ALL = {*POLICIES, *EVALUATIONS, *OF_STUDENT}


@pytest.mark.parametrize(
    ("changes", "device", "expected"),
    [
        ({"policies__student__num_envs": 7}, "cpu", {"student", "evaluate-student", *OF_STUDENT}),
        ({"policies__memoryless__overrides": ["a=1"]}, "cpu", MEMORYLESS),
        ({"policies__memoryless__title": "MLP"}, "cpu", set()),
        ({"evaluation__episodes": 5}, "cpu", EVALUATIONS),
        ({"export__policy": "memoryless"}, "cpu", {"memory", "export"}),
        ({}, "cuda:0", ALL),
    ],
)
def test_a_change_reaches_exactly_what_depends_on_it(changed, changes, device, expected):
    """A stage runs again if its command changed, or one that it needs runs again."""
    outputs = {name: f"{name}.pt" for name in POLICIES}
    before, again = lay_out(load_experiment(DEMO)), set()
    for stage in lay_out(changed(**changes), device).values():
        if again & {*stage.needs} or stage.command(outputs) != before[stage.name].command(outputs):
            again.add(stage.name)
    assert before.keys() == ALL
    assert again == expected


MEANS = {"teacher": 10.0, "student": 9.95, "memoryless": 4.0, "finetuned": 9.9, "scratch": 9.7}


@pytest.fixture
def results(tmp_path):
    """Return a function that writes evaluations with these means, and collects them."""
    exported = {"max_difference": {"unitree": 0.0, "onnx": 1.2e-7}, "golden": "200 steps"}
    write_json(tmp_path / "exported" / "policy.json", exported)

    def collected(file=DEMO, acceptance=None, **means):
        experiment = load_experiment(file)
        for name, mean in (MEANS | means).items():
            returns = mean + torch.linspace(-0.5, 0.5, 20)
            evaluation = summarise(returns, torch.full((20,), 12), 1 / 30)
            write_json(tmp_path / "evaluation" / f"{name}.json", evaluation)
        changes = {"acceptance": acceptance} if acceptance else {}
        return collect(tmp_path, experiment.model_copy(update=changes))

    return collected


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["scripts.pipeline", *map(str, arguments)])
    return pipeline.main()


def finished(file, folder):
    """Return the records of an experiment's stages, and write the curves of its trainings."""
    experiment, records = load_experiment(file), {}
    for stage in pipeline_stages(experiment, "cpu"):
        policy = experiment.policies.get(stage.name)
        if policy is not None and policy.run is None:
            with SummaryWriter(log_dir=str(folder / "logs" / f"1_{stage.name}")) as writer:
                writer.add_scalar("Train/mean_reward", 1.0, 0)
        output = f"logs/1_{stage.name}/model_2.pt"
        values = {"command": f"do {stage.name}", "began_at": 0.0, "output": output}
        records[stage.name] = Record(seconds=61.0, peak_memory_gb=1.5, **values)
    return records


def test_a_policy_that_was_trained_before_has_no_curve(results, tmp_path, monkeypatch):
    records = finished(GO1, tmp_path)
    monkeypatch.setattr(pipeline, "run_stages", lambda *_: records)
    results(GO1)
    assert run_main(monkeypatch, GO1, "--output", tmp_path) == 0
    drawn = (tmp_path / "curves.svg").read_text()
    assert ">LSTM, distilled<" in drawn
    assert "sees everything" not in drawn


def test_a_run_ends_with_table_checks_report_and_cost(results, tmp_path, monkeypatch, capsys):
    records = finished(DEMO, tmp_path)
    monkeypatch.setattr(pipeline, "run_stages", lambda *_: records)
    table = results(student=9.0)
    assert run_main(monkeypatch, DEMO, "--output", tmp_path) == 0
    out = capsys.readouterr().out
    assert format_table(table, "plain") in out
    assert "\n NO  student reaches 90.0% of the teacher's return (goal: 99%).\nyes  mem" in out
    assert f"report: {tmp_path / 'report.md'}\ntime: 0:0" in out
    assert out.endswith("8:08 for all stages; peak memory 1.50 GB\n")
    report = (tmp_path / "report.md").read_text()
    for part in (format_table(table, "pipe"), "- NO: student reaches 90.0%"):
        assert part in report
    for part in ("do evaluate-student\n", "onnx 1.2e-07.", "newton"):
        assert part in report
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", report)
    assert (tmp_path / picture).read_text().endswith("</svg>\n")


AT_MOST = [AcceptanceCheck(policy="memoryless", max_share_of_teacher=0.8)]


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({"student": 9.95, "memoryless": 4.0}, [True, True]),
        ({"student": 9.95, "memoryless": 9.85}, [True, False]),
        ({"student": 4.0, "memoryless": 9.0}, [False, False]),
        # Lower than the student, but intervals overlap.
        ({"file": FINETUNE, "finetuned": 9.75}, [True, True, True, True]),
        ({"file": FINETUNE, "finetuned": 9.4}, [True, False, False, True]),
        ({"teacher": -1.0}, [False, True]),  # no share can be given
        ({"memoryless": 7.9, "acceptance": AT_MOST}, [True]),
        ({"memoryless": 8.1, "acceptance": AT_MOST}, [False]),
    ],
)
def test_acceptance_follows_the_numbers(results, changes, passed):
    found = results(**changes)
    assert [check["passed"] for check in found["acceptance"]] == passed
    assert ("n/a" in format_table(found)) == ("teacher" in changes)


def test_an_unwritable_folder_ends_the_run_before_any_training(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    assert run_main(monkeypatch, DEMO, "--output", tmp_path / "file" / "run") == 1
    captured = capsys.readouterr()
    assert "expected a folder that can be written" in captured.err
    assert "isaaclab train" not in captured.out
    assert run_main(monkeypatch, tmp_path / "absent.yaml") == 1
    assert "absent.yaml cannot be read" in capsys.readouterr().err
