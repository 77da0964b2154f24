"""The report: everything in one file, the right numbers in the table."""

import base64
import json
import re
from html.parser import HTMLParser

import pytest
import torch

from rsl_tbptt.evaluation import summarise
from rsl_tbptt.files import write_json
from scripts.pipeline import report
from scripts.pipeline.presets import DEMO, FINETUNE, Verdict, load_preset
from scripts.pipeline.process import Finished
from scripts.pipeline.results import collect, format_table
from scripts.pipeline.run_folder import RunFolder
from scripts.pipeline.stages import pipeline_stages

MEANS = {
    "teacher": 10.0,
    "student": 9.95,
    "memoryless": 4.0,
    "finetuned": 9.9,
    "scratch": 9.7,
    "blind": 2.0,
}
NUM_STEPS = 12
VIDEO = b"what rsl-tbptt play --video wrote"


def write_evaluation(folder, name, mean):
    returns = mean + torch.linspace(-0.5, 0.5, 20)
    result = summarise(returns, torch.full((20,), NUM_STEPS), 1 / 30)
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


def finished_run(folder, file):
    """Write a finished run folder, all but its report."""
    run, preset = RunFolder(folder), load_preset(file)
    for name in preset.evaluated:
        write_evaluation(run.path, name, MEANS[name])
    parity = {"max_difference": {"torchscript": 0.0, "onnx": 1.2e-7}}
    write_json(run.path / "exported" / "parity.json", parity)
    (run.path / "video.webp").write_bytes(VIDEO)
    outputs = {"video": run.path / "video.webp"}
    for stage in pipeline_stages(run, preset, file, "cpu")[:-1]:
        output = outputs.get(stage.name, run.path / "exported" / "parity.json")
        if stage.name in preset.policies:
            output = write_training_log(run.path, stage.name)
        run.finish(stage, output, f"do {stage.name}", Finished(0, 61.0, 1.5))
    return run


def write_report(run, file, monkeypatch):
    monkeypatch.setattr("sys.argv", ["report.py", str(run.path), "--config", str(file)])
    report.main()
    return (run.path / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def preset():
    return load_preset(DEMO)


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path / "run", DEMO)


@pytest.fixture
def html(run, monkeypatch):
    return write_report(run, DEMO, monkeypatch)


@pytest.fixture
def finetune_run(tmp_path):
    return finished_run(tmp_path / "finetune", FINETUNE)


class Loads(HTMLParser):
    """Collects whatever a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.urls, self.tags = [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.urls += [value for name, value in attrs if name in {"src", "href", "srcset", "data"}]


def test_report_loads_nothing(html):
    loads = Loads()
    loads.feed(html)
    assert loads.urls
    assert all(url.startswith("data:image/") for url in loads.urls)
    assert loads.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "base"})
    assert not re.search(r"url\(|@import", html)
    for image in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html):
        assert not re.search(r"href=\"(?!#)|<script|url\((?!#)", base64.b64decode(image).decode())


def test_loader_check_can_fail():
    loads = Loads()
    loads.feed('<img src="figure.png"><script src="x.js"></script>')
    assert loads.urls == ["figure.png", "x.js"]
    assert "script" in loads.tags


def test_report_shows_table_commands_and_versions(html, preset):
    text = re.sub(r"data:image[^\"]+", "", html)
    policies = [policy.title for policy in preset.policies.values()]
    shares = ("99.5%", "100.0%", "40.0%", "9.950")
    for expected in (*shares, *policies, preset.heading, "do evaluate-student", "newton"):
        assert expected in text
    assert text.count("data:") == 0
    assert preset.task in text


def test_the_video_of_the_run_is_in_the_report(html, preset):
    (video,) = re.findall(r"data:image/webp;base64,([^\"]+)", html)
    assert base64.b64decode(video) == VIDEO
    assert f"Video of {', '.join(preset.policies)}" in html


def test_results_file_holds_the_table(html, run):

    results = json.loads((run.path / "results.json").read_text())
    assert results["policies"]["student"]["share_of_teacher"] == pytest.approx(0.995)
    assert [verdict["passed"] for verdict in results["verdicts"]] == [True, True]
    assert results["stages"]["teacher"] == {"seconds": 61.0, "peak_memory_gb": 1.5}


@pytest.mark.parametrize(
    ("student", "memoryless", "reaches", "below"),
    [
        (9.95, 4.0, True, True),
        (9.0, 4.0, False, True),
        (9.95, 9.85, True, False),
        (4, 9, False, False),
    ],
)
def test_verdicts_follow_the_numbers(run, preset, student, memoryless, reaches, below):
    write_evaluation(run.path, "student", student)
    write_evaluation(run.path, "memoryless", memoryless)
    results = collect(run.path, preset)
    assert [verdict["passed"] for verdict in results["verdicts"]] == [reaches, below]


@pytest.mark.parametrize(("memoryless", "passed"), [(7.9, True), (8.1, False)])
def test_share_of_the_teacher_is_at_most_the_verdicts(run, preset, memoryless, passed):
    write_evaluation(run.path, "memoryless", memoryless)
    at_most = Verdict(policy="memoryless", max_share_of_teacher=0.8)
    results = collect(run.path, preset.model_copy(update={"verdicts": [at_most]}))
    share = results["policies"]["memoryless"]["share_of_teacher"]
    text = f"memoryless reaches {share:.1%} of the teacher's return (at most 80%)."
    assert results["verdicts"] == [{"passed": passed, "text": text}]


@pytest.mark.parametrize(
    ("finetuned", "scratch", "passed"),
    [
        (9.9, 9.7, [True, True, True, True]),
        (9.75, 9.7, [True, True, True, True]),  # lower than the student, but intervals overlap
        (9.4, 9.7, [True, False, False, True]),
        (9.9, 9.4, [True, True, True, False]),
    ],
)
def test_verdicts_on_finetuning_follow_the_numbers(finetune_run, finetuned, scratch, passed):
    write_evaluation(finetune_run.path, "finetuned", finetuned)
    write_evaluation(finetune_run.path, "scratch", scratch)
    results = collect(finetune_run.path, load_preset(FINETUNE))
    assert [verdict["passed"] for verdict in results["verdicts"]] == passed


def test_verdicts_say_what_was_found(run, finetune_run, preset):
    texts = [verdict["text"] for verdict in collect(run.path, preset)["verdicts"]]
    assert texts == [
        "student reaches 99.5% of the teacher's return (goal: 99%).",
        "memoryless below student: their intervals do not overlap.",
    ]
    verdicts = collect(finetune_run.path, load_preset(FINETUNE))["verdicts"]
    assert verdicts[1]["text"] == "finetuned against student: not clearly below it."


def test_finetuning_is_reported_with_all_its_policies(finetune_run, monkeypatch):
    html = write_report(finetune_run, FINETUNE, monkeypatch)
    text = re.sub(r"data:image[^\"]+", "", html)
    preset = load_preset(FINETUNE)
    for policy in preset.policies.values():
        assert policy.title in text
    assert "Exported policy: finetuned" in text
    assert "memoryless" not in text


def test_the_table_shows_every_policys_numbers(run, preset):
    rows = [line.split("  ") for line in format_table(collect(run.path, preset)).splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[0] == ["policy", "mean return", "95 % confidence", "of teacher", "episodes"]
    assert cells[2][:3] == ["student", preset.policies["student"].title, "9.950"]
    assert cells[2][4:] == ["99.5%", "20"]


def test_an_ablation_is_a_row_with_a_verdict_and_no_learning_curve(tmp_path, monkeypatch):
    run = finished_run(tmp_path / "camera", DEMO.with_name("demo-camera.yaml"))
    html = write_report(run, DEMO.with_name("demo-camera.yaml"), monkeypatch)
    results = json.loads((run.path / "results.json").read_text())
    assert results["policies"]["blind"]["share_of_teacher"] == pytest.approx(0.2)
    assert results["verdicts"][-1]["passed"]
    assert "the student, its images zero" in html


def test_share_of_a_return_that_is_not_positive_is_not_given(run, preset):
    write_evaluation(run.path, "teacher", -1.0)
    results = collect(run.path, preset)
    assert results["policies"]["student"]["share_of_teacher"] is None
    assert not results["verdicts"][0]["passed"]
    assert "n/a" in format_table(results)


def test_table_fits_a_terminal(run, finetune_run, preset):
    for results in (
        collect(run.path, preset),
        collect(finetune_run.path, load_preset(FINETUNE)),
    ):
        lines = format_table(results).splitlines()
        assert len(lines) == 1 + len(results["policies"])
        assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("stage", ["memoryless", "evaluate-student", "video", "export"])
def test_unfinished_run_is_refused(run, preset, stage):
    (run.stages / f"{stage}.json").unlink()
    with pytest.raises(FileNotFoundError, match=rf"lacks the stages \['{stage}'\]"):
        report.finished_stages(run, preset)


def test_a_policy_exported_to_onnx_alone_is_reported(tmp_path, monkeypatch):
    run = finished_run(tmp_path, DEMO)
    both = write_report(run, DEMO, monkeypatch)
    write_json(run.path / "exported" / "parity.json", {"max_difference": {"onnx": 1.2e-7}})
    alone = write_report(run, DEMO, monkeypatch)
    both = " ".join(both.split())
    assert "differs from the trained policy by at most 1.2e-07 and" in both
    assert "(TorchScript, state inside) by exactly 0 in any action" in both
    assert "policy.pt" not in alone
    assert "by at most 1.2e-07 in any action" in " ".join(alone.split())
