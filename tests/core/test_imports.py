"""The core imports torch alone, and the stepper of bundles not even that."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "rsl_rl", "isaaclab", "isaaclab_rl", "mjlab", "tensordict", "triton")


def frameworks_imported_by(module: str) -> list[str]:
    code = f"import sys, {module}; print([n for n in {FRAMEWORKS} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return eval(result.stdout)  # the list printed by our own line above


@pytest.mark.parametrize(
    ("module", "imported"), [("rsl_tbptt.core", ["torch"]), ("rsl_tbptt.deploy", [])]
)
def test_core_imports_torch_alone_and_the_stepper_no_framework(module, imported):
    assert frameworks_imported_by(module) == imported
