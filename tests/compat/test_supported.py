"""Every module that needs rsl_rl refuses unsupported releases when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from rsl_tbptt import compat as supported_rsl_rl
from rsl_tbptt.compat import rsl_rl_era

tomllib = pytest.importorskip("tomllib", reason="part of Python since 3.11")

SUPPORTED = ["3.1.2", "5.0.1", "5.4.2", "5.5.1"]
REFUSED = ["3.1.1", "3.1.3", "4.0.1", "5.0.0", "5.6.0"]
PARTS = [
    "rsl_tbptt.algorithms",
    "rsl_tbptt.integrations.isaaclab",
    "rsl_tbptt.integrations.mjlab",
    "rsl_tbptt.integrations.rsl_rl_v3",
    "rsl_tbptt_tasks.memory",
]
TRY = """
for statement in {statements}:
    try:
        exec(statement)
    except ImportError as error:
        print(error)
    else:
        print("imported")
"""


def answers(folder: Path, release: str | None, *statements: str) -> list[str]:
    """Run imports in a new process that finds rsl_rl's metadata in a folder; return the answers."""
    if release is not None:
        info = folder / f"rsl_rl_lib-{release}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: rsl-rl-lib\nVersion: {release}\n"
        )
    result = subprocess.run(
        [sys.executable, "-c", TRY.format(statements=statements)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.splitlines()


@pytest.mark.parametrize("release", ["4.0.1", "5.6.0"])
def test_every_module_refuses_unsupported_releases(tmp_path, release):
    found = answers(tmp_path, release, *(f"import {part}" for part in PARTS))
    expected = f"rsl-rl-lib is {release}, expected 3.1.2 or 5.0.1 to 5.5: install one of these"
    assert len(found) == len(PARTS)
    assert all(line.startswith(expected) for line in found), found


def test_core_needs_no_rsl_rl(tmp_path):
    assert answers(tmp_path, "4.0.1", "import rsl_tbptt.core") == ["imported"]


def test_the_error_with_rsl_rl_3_names_the_adapter(tmp_path):
    statements = (
        "import rsl_tbptt.algorithms",
        "from rsl_tbptt.algorithms import TbpttPPO",
        "from rsl_tbptt import TbpttDistillation",
        "from rsl_tbptt.models import RecurrentModel",
    )
    package, *parts = answers(tmp_path, "3.1.2", *statements)
    assert package == "imported"  # the adapter builds on the modules in it
    assert len(parts) == 3
    for line in parts:
        assert line.startswith("rsl-rl-lib is 3.1.2, expected 5.0.1 to 5.5 for rsl_tbptt.")
        assert "import rsl_tbptt.integrations.rsl_rl_v3" in line


def test_the_adapter_of_rsl_rl_3_refuses_other_releases(tmp_path):
    [line] = answers(tmp_path, "5.4.2", "import rsl_tbptt.integrations.rsl_rl_v3")
    assert line.startswith("rsl-rl-lib is 5.4.2, expected 3.1.2 for rsl_tbptt.integrations.rsl_rl")
    assert 'class_name="rsl_tbptt.algorithms:TbpttPPO"' in line


@pytest.mark.parametrize("release", SUPPORTED + REFUSED)
def test_package_requires_the_same_releases(monkeypatch, release):
    monkeypatch.setattr(supported_rsl_rl, "installed_version", lambda name: release)
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    [asked] = [
        d
        for d in pyproject["project"]["optional-dependencies"]["train"]
        if d.startswith("rsl-rl-lib")
    ]
    assert SpecifierSet(asked.removeprefix("rsl-rl-lib")).contains(release) is (
        release in SUPPORTED
    )
    if release in SUPPORTED:
        assert rsl_rl_era() == ("policy" if release == "3.1.2" else "models")
    else:
        with pytest.raises(ImportError, match=f"rsl-rl-lib is {release}, expected 3.1.2 or 5.0.1"):
            rsl_rl_era()


def test_a_fork_under_another_name_is_refused_by_its_place(monkeypatch):
    monkeypatch.setattr(supported_rsl_rl, "installed_version", lambda name: None)
    with pytest.raises(ImportError, match=r"rsl_rl at .*rsl_rl.__init__.py is no rsl-rl-lib, expe"):
        rsl_rl_era()
