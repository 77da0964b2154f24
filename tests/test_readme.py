"""The README's code runs, and what it names exists."""

import dataclasses
import re
from pathlib import Path

from helpers import make_distillation, roll_out

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.options import DistillationOptions

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_python_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_every_option_is_in_the_readme():
    section = README.split("## Options")[1].split("## ")[0]
    for field in dataclasses.fields(DistillationOptions):
        assert f"`{field.name}`" in section, field.name


def test_defaults_in_the_options_table_are_the_code_s():
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", README, flags=re.MULTILINE)
    defaults = DistillationOptions()
    documented = {name: eval(value.strip("`")) for name, value in rows}
    assert documented
    assert documented == {name: getattr(defaults, name) for name in documented}


def test_every_metric_is_in_the_readme():
    algorithm = make_distillation(TbpttDistillation, 4, 2, gradient_length=2)
    roll_out(algorithm, 0)
    for name in algorithm.update():
        assert f"`Loss/{name}`" in README, name


def test_linked_files_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
