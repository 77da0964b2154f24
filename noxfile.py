"""Run tests with every supported rsl_rl and in every environment: `make test-matrix`.

Each row is a session; `python -m nox --list` names them. `make` prepares the environments, and a
session uses their interpreters unchanged.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import nox
from nox.command import CommandFailed

from scripts.ci.summary import read

PYTHONS = {
    "main": sys.executable,
    "mjlab": f"{os.environ.get('MJLAB', '.venv-mjlab')}/bin/python",
    "playground": f"{os.environ.get('PLAYGROUND', '.venv-playground')}/bin/python",
    "isaaclab2": f"{os.environ.get('ISAACLAB2', '.venv-isaaclab2')}/bin/python",
}
PRINT_RELEASES = (
    "from importlib.metadata import version; print(version('rsl-rl-lib'), version('torch'))"
)
OF_A_RELEASE = (
    "tests/algorithms/test_numerics.py",
    "tests/algorithms/distillation/test_distillation_parity.py",
    "tests/algorithms/ppo/test_ppo_parity.py",
    "tests/algorithms/ppo/test_rnd.py",
    "tests/checkpoints",
    "tests/contract",
    "tests/runners/test_checkpoints.py",
)
"""What depends on rsl_rl's release."""
MJLAB = (
    "tests/integrations/test_mjlab*.py",
    "tests/tasks/test_mjlab_*.py",
    "tests/tasks/test_configs.py",
)
MJLAB_SIMULATED = (*MJLAB, "-m", "not soak")  # also the long ones


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of pytest."""

    name: str
    rsl_rl: str
    """Release to run with: the environment's, or one under ``.rsl_rl``."""
    python: str = "main"
    """Name of the environment."""
    torch: str | None = None
    """Release under ``.torch`` to run with, or None for the environment's."""
    tests: tuple[str, ...]
    """Arguments of pytest; patterns are replaced by the files that match."""


ROWS = (
    # Two run at a time: the longest first. These are not in `make test`, so that it takes minutes.
    Row(name="long", rsl_rl="5.5.1", tests=("tests", "-m", "long and not isaaclab")),
    Row(name="long-isaaclab", rsl_rl="5.5.1", tests=("tests", "-m", "long and isaaclab")),
    Row(name="mjlab", rsl_rl="5.4.2", python="mjlab", tests=MJLAB_SIMULATED),
    # Uninitialised memory is NaN, and properties are tested with more examples.
    Row(
        name="thorough",
        rsl_rl="5.5.1",
        tests=("tests/core", "tests/algorithms", "--poisoned", "--hypothesis-profile=thorough"),
    ),
    # The newest torch, newer than Isaac Lab's; the Makefile installs it.
    Row(
        name="torch-2.15.0",
        rsl_rl="5.5.1",
        torch="2.15.0",
        tests=(
            "tests/core",
            "tests/algorithms/test_numerics.py",
            "tests/algorithms/update/test_recorded_steps.py",
            "tests/tools/test_export.py",
        ),
    ),
    Row(name="scripts", rsl_rl="5.5.1", tests=("tests/scripts",)),
    Row(name="browser", rsl_rl="5.5.1", tests=("tests/browser",)),
    Row(
        name="isaaclab-2.3",
        rsl_rl="3.1.2",
        python="isaaclab2",
        tests=("tests/compat/rsl_rl3", "tests/contract", "tests/algorithms/test_numerics.py"),
    ),
    Row(name="release", rsl_rl="5.0.1", tests=OF_A_RELEASE),
    Row(name="release", rsl_rl="5.4.2", tests=OF_A_RELEASE),
    # The next mjlab's rsl_rl.
    Row(name="mjlab", rsl_rl="5.5.1", python="mjlab", tests=MJLAB),
    Row(
        name="playground",
        rsl_rl="5.5.1",
        python="playground",
        tests=("tests/integrations/test_playground.py",),
    ),
    Row(name="package", rsl_rl="5.5.1", tests=("tests/test_packaging.py", "-m", "package")),
)


@nox.session(venv_backend="none")
@nox.parametrize("row", [nox.param(row, id=f"{row.name}-{row.rsl_rl}") for row in ROWS])
def tests(session: nox.Session, row: Row) -> None:
    """Run the tests of one row with the row's releases; at least one test has to pass.

    Raises:
        CommandFailed: If pytest fails.
    """
    folders = [f".rsl_rl/{row.rsl_rl}", *([f".torch/{row.torch}"] if row.torch else [])]
    environment = {"PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in folders)}
    folder = Path(os.environ.get("REPORTS") or session.create_tmp())
    report = folder / f"row-{row.name}-{row.rsl_rl}.xml"
    report.write_text("")  # an empty file counts as an error, if pytest does not replace it

    def python(*arguments: str, silent: bool = False) -> str:
        command = (PYTHONS[row.python], *arguments)
        return str(session.run(*command, env=environment, silent=silent, external=True))

    rsl_rl, torch = python("-c", PRINT_RELEASES, silent=True).split()
    if (rsl_rl, torch) != (row.rsl_rl, row.torch or torch):
        session.error(
            f"rsl_rl is {rsl_rl} and torch {torch}, expected {row.rsl_rl} and {row.torch or 'any'}:"
            " run `make test-matrix`."
        )
    # A pattern without files stays in the arguments, so that pytest fails.
    found = [sorted(map(str, Path().glob(t))) if "*" in t else [t] for t in row.tests]
    arguments = [name for t, names in zip(row.tests, found, strict=True) for name in names or [t]]
    try:
        python("-m", "pytest", f"--junitxml={report}", *arguments)
    except CommandFailed:
        outcomes, _ = read(report)
        if not outcomes["failed"] + outcomes["error"]:  # pytest itself failed
            report.write_text("")
        raise
    if not read(report)[0]["passed"]:
        report.write_text("")
        session.error(f"no test passed, expected some of {' '.join(row.tests)}.")
