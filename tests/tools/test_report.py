"""``rsl-tbptt report``: the content of its page, which is one file that loads nothing."""

import json
import os
import re
import shlex
from html import unescape

import pytest
import torch
import yaml
from support.pages import assert_loads_nothing
from torch.utils.tensorboard import SummaryWriter

from rsl_tbptt.files import write_json
from rsl_tbptt.tools.commands.cli import command_parser, main
from rsl_tbptt.tools.runs.charts import MOST_POINTS, curve_chart, thinned
from rsl_tbptt.tools.runs.report import report
from rsl_tbptt.tools.simulate.evaluate import summarise

AGENT = {
    "seed": 7,
    "device": "cpu",
    "max_iterations": 40,
    "run_name": "student",
    "load_checkpoint": "logs/rsl_rl/cart/1_teacher/model_9.pt",
    "algorithm": {"class_name": "rsl_tbptt.algorithms:TbpttDistillation", "gradient_length": 16},
    "student": {"rnn_type": "lstm"},
}


def write_run(folder, kl=0.01, platform=None, iterations=40):
    """Write the log folder of a training as rsl_rl alone or Isaac Lab does."""
    with SummaryWriter(log_dir=str(folder)) as writer:
        for step in range(iterations):
            writer.add_scalar("Train/mean_reward", step, step)
            writer.add_scalar("Loss/behavior", 10.0 ** (-step / 10), step)
            writer.add_scalar("Loss/kl", kl, step)
    torch.save({"iter": 19, "student_state_dict": {"w": torch.ones(1)}}, folder / "model_19.pt")
    (folder / "params").mkdir()
    (folder / "params" / "agent.yaml").write_text(yaml.safe_dump(AGENT))
    if platform == "isaaclab":
        (folder / "params" / "env.yaml").write_text(yaml.safe_dump({"scene": {"num_envs": 64}}))
        metadata = {"agent": "recurrent"}
        write_json(
            folder / "run.json", {"library": "rsl_rl", "task": "Tbptt-Cart", "metadata": metadata}
        )
        (folder / "git").mkdir()
        noted = f"--- git commit ---\n{'ab' * 20}\n\n--- git diff ---\n+1"
        (folder / "git" / "robots.diff").write_text(noted)
    return folder


def write_evaluation(path, mean, **facts):
    found = summarise(mean + torch.linspace(-1, 1, 9), torch.full((9,), 12), 0.5)
    write_json(path, {**found, "task": "module:make_env", **facts})


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "2026-01-02_03-04-05_student")


def page_of(*runs, **options):
    html = report([*runs], **options).read_text(encoding="utf-8")
    text = unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.S))
    return html, " ".join(text.split())


def commands_in(html):
    return dict(re.findall(r"<b>([a-z]+)</b>\n<pre>(.*?)</pre>", html))


def test_a_page_loads_nothing_and_shows_curves_verdicts_and_versions(run):
    html, text = page_of(run)
    assert assert_loads_nothing(html) == []
    assert len(html) < 40_000
    assert "<h1>student</h1>" in html
    for chart in ("Reward per episode", "Loss: behavior"):
        assert f'role="img" aria-label="{chart}' in html
    assert "Loss: kl" not in text
    assert "kl 0.01 ≤ 0.1 ✓ ok" in text
    assert "✗" not in text
    for known in (
        "algorithm TbpttDistillation",
        "seed 7",
        "newest checkpoint model_19.pt",
        "torch",
    ):
        assert known in text
    assert "prefers-color-scheme: dark" in html


def test_a_page_judges_as_doctor_does(run, tmp_path, capsys):
    ill = write_run(tmp_path / "ill", kl=0.3)
    _, text = page_of(ill)
    assert main(["doctor", str(ill)]) == 1
    (finding,) = re.findall(r" -      (Loss/kl is .*)", capsys.readouterr().out)
    assert finding in text
    assert "kl 0.3 ≤ 0.1 ✗ WRONG" in text
    _, text = page_of(write_run(tmp_path / "short", kl=0.3, iterations=5))
    assert "kl 0.3 ≤ 0.1 … too few updates" in text


def test_a_comparison_tells_runs_apart_without_colour(run, tmp_path, monkeypatch, capsys):
    other = write_run(tmp_path / "2026-01-02_03-09-09_a<b>")
    write_evaluation(run / "evaluation.json", 5.0, success_rate=0.75, ended_by={"fell": 0.25})
    write_evaluation(run / "evaluation-2.json", 6.0)
    write_evaluation(other / "evaluation.json", 3.0)
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run), str(other)]) == 0
    assert capsys.readouterr().out == "wrote report.html\n"
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert_loads_nothing(html)
    legend = html[html.index('<ul class="legend">') :]
    assert re.findall(r'class="line (.*?)".*?</svg>(.*?)</li>', legend)[:2] == [
        ("c0 d0", "student"),
        ("c1 d1", "a&lt;b&gt;"),
    ]
    rows = re.findall(r'<td><b>(.*?)</b>.*?mean return">(.*?)<', html, flags=re.S)
    assert rows == [
        ("student, evaluation.json", "5.000"),
        ("student, evaluation-2.json", "6.000"),
        ("a&lt;b&gt;", "3.000"),
    ]
    assert 'data-of="success">75.0 %<' in html
    assert "fell&nbsp;25.0&nbsp;%" in html
    assert html.count('class="dots c0 d0"') == 2


@pytest.mark.parametrize(("held_out", "end"), [(False, 39), (True, 4)])
def test_curves_above_an_evaluation_are_named(run, held_out, end):
    """The curve of all environments rises to 39, that of the held-out ones to 4."""
    tag = "Train/mean_reward"
    if held_out:
        tag = "Loss/held_out/return"
        with SummaryWriter(log_dir=str(run)) as writer:
            for step in range(20, 40):
                writer.add_scalar(tag, end + 0.01 * (step - 39), step)
    write_evaluation(run / "evaluation.json", end - 0.5, checkpoint="model_39.pt")
    write_evaluation(run / "evaluation-5.json", end + 50.0, checkpoint="model_39.pt")
    _, text = page_of(run)
    assert f"evaluation evaluation, evaluation-5: {tag}" in text
    assert "trust the evaluation" not in text
    write_evaluation(run / "evaluation-2.json", end - 20.0, checkpoint="model_39.pt")
    write_evaluation(run / "evaluation-3.json", -90.0, checkpoint="model_1.pt", held_out=held_out)
    write_evaluation(run / "evaluation-4.json", -90.0)  # of an unknown checkpoint
    _, text = page_of(run)
    assert re.findall(rf"{tag} is \S+ at (\S+), but (\S+) has", text) == [
        ("model_39.pt", "evaluation-2.json"),
        *([] if held_out else [("model_1.pt", "evaluation-3.json")]),
    ]


def test_a_folder_of_runs_is_a_comparison_of_them(tmp_path, monkeypatch, capsys):
    runs = [write_run(tmp_path / "logs" / "cart" / name) for name in ("teacher", "student")]
    (tmp_path / "logs" / "cart" / "teacher" / "videos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["report", "logs"]) == 0
    assert capsys.readouterr().out == "wrote report.html\n"
    html = (tmp_path / "report.html").read_text()
    assert "<h1>2 trainings compared</h1>" in html
    assert re.findall(r"</svg>(\w+)</li>", html) == ["student", "teacher"]
    assert main(["report", "logs", str(runs[0])]) == 1
    assert "expected each once: leave one out" in capsys.readouterr().err


def memory(length=2, **changes):
    """Return a result of ``rsl-tbptt memory``, of two groups and a gradient of 16 steps."""
    stay = {"steps": 3, "observed": 150}
    group = {"length": length, "influence": [0.5] * (length + 1) + [0.0] * 20}
    group |= {"outlier": stay, "frozen": {"steps": 150, "observed": 150}}
    tail = {"tail": {"steps": 0, "observed": 150}}
    group |= tail | {"start_steps": 5, "start_influence": group["influence"]}
    found = {"checkpoint": "model_19.pt", "step_seconds": 0.02, "gradient_length": 16}
    found |= {"length": length, "influence": group["influence"], "missed_reset": stay, **tail}
    found |= {"groups": {"policy": group, "camera": group}, "after_reset": 0.0}
    return found | {"units": 64, "moving": 60, "effective": 5.25} | changes


def test_a_measured_memory_has_a_chart_a_table_and_a_verdict(run, capsys):
    write_json(run / "memory.json", memory())
    html, text = page_of(run)
    assert_loads_nothing(html)
    for changed in ("one observation", "an episode&#39;s first steps"):
        assert f'aria-label="Change of later actions by {changed}' in html
    assert "camera 2 steps (0.04 s) 3 steps at least 150 steps" in text
    assert "units 64, 60 active; effective dimension 5.2" in text
    assert re.findall(r"</svg>(\w+)</li>", html) == ["policy", "camera"]
    assert main(["doctor", str(run)]) == 1
    shown = capsys.readouterr().out
    expected = "model_19.pt: the policy looks back 2 steps (0.04 s), and gradients flow back 16:"
    assert f"memory       WRONG  {expected} fewer would do" in shown
    assert shown.count("A frozen sensor in '") == 2
    assert expected in text


def test_a_memory_that_cannot_be_read_is_named(run, capsys):
    older = {key: value for key, value in memory().items() if key != "tail"}
    for content in ("{", "[]", json.dumps({"length": 3}), json.dumps(older)):
        (run / "memory.json").write_text(content)
        for command in ("doctor", "report"):
            assert main([command, str(run)]) == 1
            assert "memory.json' cannot be read" in capsys.readouterr().err


def test_commands_are_those_of_the_platform_with_absolute_paths(tmp_path):
    experiment = tmp_path / "logs" / "rsl_rl" / "cart"
    run = write_run(experiment / "2_student", platform="isaaclab")
    (run / "model_0.pt").touch()
    (experiment / "1_teacher").mkdir()
    (experiment / "1_teacher" / "model_9.pt").touch()
    html, text = page_of(run)
    commands = commands_in(html)
    assert [*commands] == ["train", "resume", "play", "evaluate", "export", "judge"]
    assert commands["train"].startswith(
        "isaaclab train --rl_library rsl_rl --task Tbptt-Cart --agent recurrent --checkpoint"
        f" {experiment}/1_teacher/model_9.pt --num_envs 64 --max_iterations 40 --seed 7"
    )
    assert f"{run}/model_19.pt --num_envs 64 --max_iterations 20 " in commands["resume"]
    for command in commands.values():
        program, *words = shlex.split(command)
        if program == "rsl-tbptt":
            command_parser().parse_args(words)
    assert "commit robots abababababab with changes" in text


def test_commands_of_a_platform_that_is_not_installed_are_left_out(tmp_path, monkeypatch):
    def physics(task):
        raise ModuleNotFoundError(name="isaaclab")

    monkeypatch.setattr("rsl_tbptt.tools.platforms.isaaclab.physics", physics)
    html, _ = page_of(write_run(tmp_path / "run", platform="isaaclab"))
    assert [*commands_in(html)] == ["play", "evaluate", "export", "judge"]


def test_a_folder_with_a_config_alone_has_a_page(tmp_path):
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "agent.yaml").write_text("seed: 3\n")
    assert "seed 3" in page_of(tmp_path)[1]


def test_a_folder_of_events_alone_has_a_page(tmp_path):
    with SummaryWriter(log_dir=str(tmp_path)) as writer:
        writer.add_scalar("Train/mean_reward", float("nan"), 0)
    html, text = page_of(tmp_path)
    assert "… checkpoint skipped: no model_" in text
    assert "No curves to draw" in text
    assert [*commands_in(html)] == ["judge"]


def test_wrong_arguments_are_named(run, tmp_path, capsys):
    (run / "evaluation.json").write_text(json.dumps({"episodes": 3}))
    (tmp_path / "empty").mkdir()
    for words, message in (
        ([run, run], "expected each once: leave one out"),
        ([tmp_path / "empty"], "/empty', expected the log folder of a training"),
        ([tmp_path / "missing"], "/missing', expected the log folder of a training"),
        ([run], "evaluation.json' cannot be read (KeyError('returns'))"),
    ):
        assert main(["report", *map(str, words)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("rsl-tbptt report: ")
        assert message in line
    assert [name for name in os.listdir(run) if name.endswith(".html")] == []


def test_a_curve_is_thinned_to_means_and_keeps_its_gaps():
    steps, nan = range(MOST_POINTS * 2), float("nan")
    assert thinned(steps, [float(step) for step in steps])[:2] == [(0.5, 0.5), (2.5, 2.5)]
    chart = curve_chart("gap", {0: (range(5), [1.0, 2.0, nan, 3.0, 1.0])})
    assert chart is not None
    assert chart.lines[0]["d"].count("M") == 2
    assert curve_chart("nothing", {0: (range(2), [nan, nan])}) is None
    flat = curve_chart("flat", {0: (range(3), [2.0, 2.0, 2.0])})
    assert flat is not None
    assert [y for y, _ in flat.y_ticks] == [102.0]
