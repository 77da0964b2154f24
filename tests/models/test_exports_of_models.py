"""Exports of models with a memory: every group by its name, the state in and out, or inside."""

from typing import Any

import pytest
from support.helpers import IMAGES, make_model

from rsl_tbptt.tools.export import (
    export_onnx,
    export_torchscript,
    make_sequence,
    max_difference,
    run_onnx,
    run_policy,
    run_torchscript,
)


@pytest.mark.parametrize("kind", ["cnn-lstm", "cnn-gru"])
def test_exports_act_as_the_model(tmp_path, kind):
    model: Any = make_model("student", kind, 4, seed=1).eval()
    export_onnx(model, tmp_path / "policy.onnx")
    export_torchscript(model, tmp_path / "policy.pt")
    obs, starts = make_sequence(model, 6, seed=0)
    assert [*obs] == ["policy", *IMAGES]
    expected = run_policy(model, obs, starts)
    for run, name in ((run_onnx, "policy.onnx"), (run_torchscript, "policy.pt")):
        assert max_difference(run(tmp_path / name, obs, starts), expected) < 1e-6
