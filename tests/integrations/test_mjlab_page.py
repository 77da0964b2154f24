"""The text of docs/howto/mjlab.md; test_mjlab_train.py runs it where mjlab is installed."""

import pytest
from support.mjlab_page import INSTALLATIONS, ON_A_GPU, ON_TWO_GPUS, commands, runs

WITHOUT_A_GPU = {"train": ("--gpu-ids", "None"), "play": ("--device", "cpu")}


def test_only_installations_and_two_gpus_are_left_out():
    assert commands().keys() - runs().keys() == {*INSTALLATIONS, ON_TWO_GPUS}
    assert len(runs()) >= 12


@pytest.mark.parametrize("comment", [name for name in runs() if not name.endswith(ON_A_GPU)])
def test_command_says_how_to_run_without_a_gpu(comment):
    words = commands()[comment].words
    option, value = WITHOUT_A_GPU[words[0]]
    assert words[words.index(option) + 1] == value
