"""The core imports torch and no framework; Triton is imported where it is used."""

import subprocess
import sys

FRAMEWORKS = ("rsl_rl", "isaaclab", "isaaclab_rl", "mjlab", "tensordict", "triton")


def frameworks_imported_by(module: str) -> list[str]:
    code = f"import sys, {module}; print([n for n in {FRAMEWORKS} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return eval(result.stdout)  # the list printed by our own line above


def test_core_imports_no_framework():
    assert frameworks_imported_by("rsl_tbptt.core") == []


def test_the_check_can_fail():
    assert "tensordict" in frameworks_imported_by("tensordict")
