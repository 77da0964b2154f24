"""Small updates give the recorded numbers, so a refactoring changes none of them."""

import json

import pytest
from support import numerics
from support.cases import CASES
from support.tolerances import SAME_BFLOAT16_ANYWHERE, SAME_FLOAT64_ANYWHERE

RECORDED = json.loads(numerics.RECORDED.read_text()).get(numerics.release(), {})


def test_every_case_is_recorded():
    assert set(CASES) == set(RECORDED)


@pytest.mark.parametrize("name", sorted(CASES))
def test_numbers_equal_the_recorded_ones(name):
    tolerance = SAME_BFLOAT16_ANYWHERE if "bfloat16" in name else SAME_FLOAT64_ANYWHERE
    found, recorded = numerics.projections(numerics.run(CASES[name])), RECORDED[name]
    renamed = {numerics.NEWER_NAMES.get(name, name): name for name in recorded["metrics"]}
    metrics = {renamed.get(name, name): value for name, value in found["metrics"].items()}
    metrics = {name: metrics[name] for name in recorded["metrics"]}
    assert metrics == pytest.approx(recorded["metrics"], **tolerance)
    for kind in ("parameters", "buffers", "optimizer"):
        assert found[kind] == pytest.approx(recorded[kind], **tolerance), kind
