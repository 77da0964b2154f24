"""A policy that mjlab's runner has exported, as teacher."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.exported_policies import GROUPS, NUM_ACTIONS, observations, trained
from support.tolerances import WINDOW_FLOAT32

pytest.importorskip("mjlab")


@pytest.mark.filterwarnings("ignore")  # torch's exporter warns of itself
@pytest.mark.parametrize("head", ["GaussianDistribution", "HeteroscedasticGaussianDistribution"])
def test_labels_of_mjlabs_exporter(head, tmp_path):
    from mjlab.rl.runner import MjlabOnPolicyRunner  # pyright: ignore[reportMissingImports]

    from rsl_tbptt.models import ExportedTeacher

    actor, obs = trained(head), observations()
    runner: Any = SimpleNamespace(alg=SimpleNamespace(get_policy=lambda: actor))
    MjlabOnPolicyRunner.export_policy_to_onnx(runner, str(tmp_path), "policy.onnx")
    teacher = ExportedTeacher(obs, GROUPS, "teacher", NUM_ACTIONS)
    teacher.load(str(tmp_path / "policy.onnx"), obs)
    torch.testing.assert_close(teacher(obs), actor(obs).detach(), **WINDOW_FLOAT32)
