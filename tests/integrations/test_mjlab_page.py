"""docs/mjlab.md as it is written; test_mjlab_train.py follows it where mjlab is installed."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.mjlab_page import BLOCKS, INSTALLATIONS, ON_A_GPU, ON_TWO_GPUS, PAGE, commands, runs

ROOT = Path(__file__).parents[2]
WITHOUT_A_GPU = {"train": ("--gpu-ids", "None"), "play": ("--device", "cpu")}


def test_only_installations_and_two_gpus_are_left_out():
    assert commands().keys() - runs().keys() == {*INSTALLATIONS, ON_TWO_GPUS}
    assert len(runs()) >= 12


def test_files_of_the_page_are_complete_before_its_first_command():
    assert [language for language, _ in BLOCKS[:5]] == ["bash", "toml", *["python"] * 3]
    assert {language for language, _ in BLOCKS[5:]} == {"bash"}
    assert {text.split(",")[0].split("\n")[0] for _, text in BLOCKS[1:5]} == {
        "# pyproject.toml",
        "# my_task.py",
    }


@pytest.mark.parametrize("comment", [name for name in runs() if not name.endswith(ON_A_GPU)])
def test_command_says_where_it_runs_without_a_gpu(comment):
    words = commands()[comment].words
    option, value = WITHOUT_A_GPU[words[0]]
    assert words[words.index(option) + 1] == value


def test_runs_and_tasks_that_commands_name_are_those_of_the_pages_files():
    code = "".join(text for language, text in BLOCKS if language == "python")
    own = [command.words for command in commands().values() if "My-Task-" in str(command.words)]
    registered = set(re.findall(r'^    \("(\w+)", \w+, \w+\),', code, flags=re.MULTILINE))
    assert {words[1].removeprefix("My-Task-") for words in own} == registered
    found = {word[3:-1] for words in own for word in words if word.startswith(".*_")}
    assert found == {"teacher", "student"}
    assert all(f'"{name}"' in code for name in found)


def test_resuming_says_what_counts_and_what_is_lost():
    section = PAGE.split("## Resuming")[1].split("\n## ")[0]
    for option in ("max-iterations", "load-run", "load-checkpoint", "save-interval"):
        assert f"`--agent.{option}`" in section
    assert "Ctrl+C" in section


@pytest.mark.parametrize(
    ("package", "taken", "refused"),
    [
        ("mjlab", ["1.6.0", "1.7.0"], ["1.5.0", "1.8.0"]),
        # 0.29 has no `start_method`, which rsl_rl 5.4.2 sets.
        ("wandb", ["0.22.3", "0.28.2"], ["0.29.0", "0.31.0"]),
    ],
)
def test_extra_takes_what_runs_together(package, taken, refused):
    tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = pyproject["project"]["optional-dependencies"]["mjlab"]
    asked = {requirement.name: requirement.specifier for requirement in map(Requirement, extra)}
    assert all(version in asked[package] for version in taken)
    assert not any(version in asked[package] for version in refused)


def test_linked_files_exist():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
