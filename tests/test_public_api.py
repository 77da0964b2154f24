"""The public API is this list and docs/reference/api.md, so that no name changes by accident."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from rsl_tbptt.installation import install

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
PUBLIC = {
    "rsl_tbptt.algorithms": "TbpttDistillation TbpttPPO",
    "rsl_tbptt.extensions": "Extension OptionGroup Rule positive between count",
    "rsl_tbptt.algorithms.replay": "Policy",
    "rsl_tbptt.core.rollout": "Samples",
    "rsl_tbptt.models": "RecurrentModel CNNRNNModel",
    "rsl_tbptt.models.protocol": "WindowedModel",
    "rsl_tbptt.core.scan": "Cell register",
    "rsl_tbptt.runners": "TbpttDistillationRunner TbpttOnPolicyRunner",
    "rsl_tbptt.integrations.isaaclab": (
        "TbpttDistillationAlgorithmCfg TbpttPpoAlgorithmCfg TbpttCnnRnnModelCfg TbpttControllerCfg"
    ),
    "rsl_tbptt.integrations.mjlab": (
        "TbpttDistillationRunnerCfg TbpttDistillationAlgorithmCfg TbpttPpoAlgorithmCfg "
        "TbpttCnnRnnModelCfg TbpttControllerCfg "
        "TbpttMjlabDistillationRunner TbpttMjlabRecurrentRunner"
    ),
    "rsl_tbptt.deploy": "Policy",
    "rsl_tbptt.core": (
        "recurrent_scan tbptt_schedule num_steps_of_full_group Window accumulate_group "
        "SampleLosses Rollout"
    ),
}
"""Names by module, separated by spaces."""
IMPORTED = {"isaaclab": "isaaclab", "mjlab": "mjlab"}
"""The package that an integration imports."""


def test_the_page_shows_the_public_names():
    shown = re.findall(r"^\.\. auto\w+:: (\S+)", PAGE.read_text(), flags=re.MULTILINE)
    assert shown == [f"{module}.{name}" for module in PUBLIC for name in PUBLIC[module].split()]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_can_be_imported(module):
    if module.startswith("rsl_tbptt.integrations."):
        pytest.importorskip(IMPORTED[module.rpartition(".")[2]])
    imported = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(imported, name)] == []


@pytest.mark.parametrize("platform", IMPORTED)
def test_without_its_platform_the_error_of_an_integration_names_the_fix(platform, monkeypatch):
    module = f"rsl_tbptt.integrations.{platform}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    package = IMPORTED[platform]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=re.escape(install(platform))):
        importlib.import_module(module)
