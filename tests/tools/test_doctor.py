"""``rsl-tbptt doctor`` on a GPU names the engine and times an update; the CPU stands in for it."""

import re
import warnings

import pytest

from rsl_tbptt.core import scan
from rsl_tbptt.tools.doctor import check_engine


@pytest.mark.slow
def test_engine_precision_and_time_are_named():
    found = check_engine("cpu")
    assert found.startswith("compiled, products in float32; PPO, LSTM-256")
    assert re.search(r"an update takes [\d.]+ ms, rsl_rl's [\d.]+ ms$", found)


def test_an_engine_that_does_not_work_is_named_with_its_reason(monkeypatch):
    def broken(*_):
        warnings.warn("'triton' failed a comparison", stacklevel=2)
        return "reference"

    monkeypatch.setattr(scan, "fastest_engine", broken)
    with pytest.raises(ValueError, match=r"scan_engine is 'reference'.*failed a comparison"):
        check_engine("cpu")
