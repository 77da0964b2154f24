"""The text of docs/howto/mjlab.md; test_mjlab_train.py runs it where mjlab is installed."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.mjlab_page import INSTALLATIONS, ON_A_GPU, ON_TWO_GPUS, commands, runs

ROOT = Path(__file__).parents[2]
WITHOUT_A_GPU = {"train": ("--gpu-ids", "None"), "play": ("--device", "cpu")}


def test_only_installations_and_two_gpus_are_left_out():
    assert commands().keys() - runs().keys() == {*INSTALLATIONS, ON_TWO_GPUS}
    assert len(runs()) >= 12


@pytest.mark.parametrize("comment", [name for name in runs() if not name.endswith(ON_A_GPU)])
def test_command_says_how_to_run_without_a_gpu(comment):
    words = commands()[comment].words
    option, value = WITHOUT_A_GPU[words[0]]
    assert words[words.index(option) + 1] == value


@pytest.mark.parametrize(
    ("package", "taken", "refused"),
    [
        ("mjlab", ["1.6.0", "1.7.0"], ["1.5.0", "1.8.0"]),
        # 0.29 has no `start_method`, which rsl_rl 5.4.2 sets.
        ("wandb", ["0.22.3", "0.28.2"], ["0.29.0", "0.31.0"]),
    ],
)
def test_the_extra_allows_only_releases_that_run_together(package, taken, refused):
    tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = pyproject["project"]["optional-dependencies"]["mjlab"]
    asked = {requirement.name: requirement.specifier for requirement in map(Requirement, extra)}
    assert all(version in asked[package] for version in taken)
    assert not any(version in asked[package] for version in refused)
