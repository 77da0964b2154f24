"""The metrics and options in the docs are those of the code."""

import dataclasses
import re
from pathlib import Path

import pytest
from support.helpers import make_distillation, make_ppo, roll_out

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.heads import HeadOptions, parse_heads
from rsl_tbptt.algorithms.options import PpoOptions

DOCS = Path(__file__).parents[1] / "docs"


def code_of(page, contains):
    """Return the names that a block of Python on a page defines."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (block,) = (block for block in blocks if contains in block)
    names = {}
    exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")
def test_every_metric_is_in_the_reference():
    page = (DOCS / "reference" / "metrics.md").read_text()
    distillation = make_distillation(
        TbpttDistillation,
        4,
        2,
        gradient_length=2,
        teacher_action_share=0.5,
        learning_rate_updates=5,
        auxiliary={"NAME": {"target": "policy"}},
    )
    roll_out(distillation, 0)
    ppo = make_ppo(TbpttPPO, 4, 2, num_mini_batches=1)
    roll_out(ppo, 0)
    for name in (*distillation.update(), *ppo.update()):
        named, slash, _ = name.partition("obs_scale/")  # one for every role and group
        in_words = f"{named}{slash}ROLE/GROUP" if slash else name
        assert f"`Loss/{in_words}`" in page, name


def test_the_options_on_the_pages_are_valid():
    names = code_of("howto/finetune.md", "teacher_cfg")
    options = dict(names["algorithm"])
    assert options.pop("class_name") == "rsl_tbptt.algorithms:TbpttPPO"
    assert PpoOptions.parse(options).teacher_updates == 60000
    assert set(names["obs_groups"]) == {"actor", "critic", "teacher"}


def test_the_heads_on_the_page_are_valid_and_its_table_is_complete():
    heads = parse_heads(code_of("howto/auxiliary_heads.md", "auxiliary =")["auxiliary"])
    assert set(heads) == {"velocity", "contact"}
    table = (DOCS / "howto" / "auxiliary_heads.md").read_text()
    keys = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert keys == [field.name for field in dataclasses.fields(HeadOptions)]
