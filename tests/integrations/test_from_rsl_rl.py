"""The keys and defaults in docs/howto/from_rsl_rl.md are those of rsl_rl and this package."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from rsl_rl.algorithms import Distillation
from support.helpers import make_distillation, roll_out
from support.tolerances import PARITY_FLOAT32

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.algorithms.options import DistillationOptions

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "from_rsl_rl.md").read_text()
RUNNERS = {"student", "teacher", "storage", "device", "multi_gpu_cfg", "kwargs"}
"""Arguments that are not in configs."""
STOCK = {
    p.name: p.default
    for p in inspect.signature(Distillation).parameters.values()
    if p.name not in RUNNERS
}
"""rsl_rl's keys and defaults."""


def section(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_table_of_distillation_has_the_defaults_of_both():
    rows = re.findall(r"^\| `(\w+)` \| `([^|]+)` \| `([^|]+)` \|", section("Distillation"), re.M)
    found = {name: (eval(theirs), eval(ours)) for name, theirs, ours in rows}
    ours = DistillationOptions()
    expected = {
        name: (default, getattr(ours, name))
        for name, default in STOCK.items()
        if name != "grad_reduce_bucket_mb"
    }
    assert found == expected


@pytest.mark.parametrize(
    ("name", "value"), re.findall(r"^- `(\w+)=([^`]+)`:", section("Distillation"), re.M)
)
def test_additions_that_act_by_default_have_these_defaults(name, value):
    assert getattr(DistillationOptions(), name) == eval(value)
    assert name not in STOCK


@pytest.mark.filterwarnings("ignore:The product of")  # rsl_rl names the steps that it drops
def test_the_config_of_the_page_leaves_the_parameters_of_rsl_rl():
    names = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.S)[0], names)
    options = {name: value for name, value in names["algorithm"].items() if name != "class_name"}
    theirs = {name: options[name] for name in ("num_learning_epochs", "max_grad_norm")}
    parameters = []
    for algorithm_class, given in ((Distillation, theirs), (TbpttDistillation, options)):
        algorithm = make_distillation(algorithm_class, 14, 5, gradient_length=4, **given)
        for seed in range(3):
            roll_out(algorithm, seed)
            algorithm.update()
        parameters.append(dict(algorithm.student.named_parameters()))
    torch.testing.assert_close(*parameters, **PARITY_FLOAT32)
