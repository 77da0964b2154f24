"""The report: everything in one file, the right numbers in the table."""

import json

import pytest
import torch

from rsl_tbptt.files import write_json
from rsl_tbptt.tools.simulate.evaluate import summarise
from scripts.pipeline import __main__ as pipeline
from scripts.pipeline.experiments import DEMO, FINETUNE, AcceptanceCheck, load_experiment
from scripts.pipeline.report import collect, format_table, write_report
from scripts.pipeline.run import Record
from scripts.pipeline.stages import pipeline_stages

MEANS = {
    "teacher": 10.0,
    "student": 9.95,
    "memoryless": 4.0,
    "finetuned": 9.9,
    "scratch": 9.7,
    "blind": 2.0,
}
VIDEO = b"what rsl-tbptt play --video wrote"


def write_evaluation(folder, name, mean):
    returns = mean + torch.linspace(-0.5, 0.5, 20)
    result = summarise(returns, torch.full((20,), 12), 1 / 30)
    write_json(folder / "evaluation" / f"{name}.json", result)


def write_training_log(folder, name):
    from torch.utils.tensorboard import SummaryWriter

    log = folder / "logs" / "rsl_rl" / "experiment" / f"1_{name}"
    with SummaryWriter(log_dir=str(log)) as writer:
        for step in range(3):
            writer.add_scalar("Train/mean_reward", step, step)
            if name in ("student", "memoryless"):
                writer.add_scalar("Loss/behavior", 1.0 / (1 + step), step)
    (log / "model_2.pt").touch()
    return log / "model_2.pt"


class Run:
    """A finished run folder without its report."""

    def __init__(self, folder, file=DEMO):
        self.folder, self.experiment = folder, load_experiment(file)
        for name in self.experiment.evaluated:
            write_evaluation(folder, name, MEANS[name])
        exported = {"max_difference": {"torchscript": 0.0, "onnx": 1.2e-7}, "golden": "200 steps"}
        write_json(folder / "exported" / "policy.json", exported)
        (folder / "video.webp").write_bytes(VIDEO)
        self.records = {}
        for stage in pipeline_stages(self.experiment, "cpu"):
            output = folder / ("video.webp" if stage.name == "video" else "exported")
            if stage.name in self.experiment.policies:
                output = write_training_log(folder, stage.name)
            self.records[stage.name] = Record(
                output=output.relative_to(folder).as_posix(),
                command=f"do {stage.name}",
                seconds=61.0,
                peak_memory_gb=1.5,
                began_at=0.0,
                finished_at=float(len(self.records)),
            )

    def report(self):
        write_report(self.folder, self.experiment, self.records, "cpu")
        return (self.folder / "report.md").read_text(encoding="utf-8")

    def results(self, **means):
        for name, mean in means.items():
            write_evaluation(self.folder, name, mean)
        return collect(self.folder, self.experiment)

    def passed(self, **means):
        return [check["passed"] for check in self.results(**means)["acceptance"]]


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


def test_the_page_shows_table_curves_video_commands_and_versions(run):
    page, experiment = run.report(), run.experiment
    shown = ("99.5%", "100.0%", "40.0%", "9.950", "do evaluate-student", "newton", "1.50 GB")
    titles = [policy.title for policy in experiment.policies.values()]
    links = ("![Return in training over iterations](curves.svg)", "[video.webp](video.webp)")
    for expected in (*shown, *titles, *links, experiment.heading, experiment.task):
        assert expected in page
    assert "- yes: student reaches 99.5% of the teacher's return (goal: 99%)." in page
    assert "onnx 1.2e-07" in page
    curves = (run.folder / "curves.svg").read_text()
    assert all(f">{title}</text>" in curves for title in titles)


def test_a_run_ends_with_table_checks_report_and_cost(run, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "run_stages", lambda *_: run.records)
    arguments = [str(DEMO), "--output", str(run.folder)]
    monkeypatch.setattr("sys.argv", ["scripts.pipeline", *arguments])
    write_evaluation(run.folder, "student", 9.0)
    assert pipeline.main() == 0
    out = capsys.readouterr().out
    assert format_table(run.results()) in out
    results = json.loads((run.folder / "results.json").read_text())
    assert results["policies"]["student"]["share_of_teacher"] == pytest.approx(0.9)
    assert [check["passed"] for check in results["acceptance"]] == [False, True]
    assert results["stages"]["teacher"] == {"seconds": 61.0, "peak_memory_gb": 1.5}
    assert "\n NO  student reaches 90.0% of the teacher's return (goal: 99%).\nyes  mem" in out
    assert f"report: {run.folder / 'report.md'}\ntime: 0:0" in out
    assert out.endswith("9:09 for all stages; peak memory 1.50 GB\n")


@pytest.mark.parametrize(
    ("student", "memoryless", "passed"),
    [(9.95, 4.0, [True, True]), (9.95, 9.85, [True, False]), (4, 9, [False, False])],
)
def test_acceptance_follows_the_numbers(run, student, memoryless, passed):
    assert run.passed(student=student, memoryless=memoryless) == passed


@pytest.mark.parametrize(
    ("finetuned", "passed"),
    [
        (9.75, [True, True, True, True]),  # lower than the student, but intervals overlap
        (9.4, [True, False, False, True]),
    ],
)
def test_acceptance_of_finetuning_follows_the_numbers(tmp_path, finetuned, passed):
    assert Run(tmp_path / "finetune", FINETUNE).passed(finetuned=finetuned) == passed


@pytest.mark.parametrize(("memoryless", "passed"), [(7.9, True), (8.1, False)])
def test_a_share_of_the_teacher_may_have_an_upper_limit(run, memoryless, passed):
    at_most = AcceptanceCheck(policy="memoryless", max_share_of_teacher=0.8)
    run.experiment = run.experiment.model_copy(update={"acceptance": [at_most]})
    results = run.results(memoryless=memoryless)
    share = results["policies"]["memoryless"]["share_of_teacher"]
    text = f"memoryless reaches {share:.1%} of the teacher's return (at most 80%)."
    assert results["acceptance"] == [{"passed": passed, "text": text}]


def test_share_of_a_return_that_is_not_positive_is_not_given(run):
    results = run.results(teacher=-1.0)
    assert results["policies"]["student"]["share_of_teacher"] is None
    assert not results["acceptance"][0]["passed"]
    assert "n/a" in format_table(results)
