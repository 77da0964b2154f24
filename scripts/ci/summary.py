"""Print one line like pytest's last for several runs, from their JUnit files."""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ATTRIBUTES = {"failed": "failures", "skipped": "skipped", "error": "errors"}
"""Outcomes and their names in the files; the remaining tests passed."""


def main() -> None:
    """Print the line for all files that the command line names."""
    total, seconds = Counter(), 0.0
    for path in sys.argv[1:]:
        outcomes, taken = read(Path(path))
        total += outcomes
        seconds += taken
    print(closing_line(total, seconds))


def read(path: Path) -> tuple[Counter[str], float]:
    """Read the result of one run.

    Args:
        path: Its JUnit file.

    Returns:
        Tests by outcome, and seconds; one error if the run ended before it wrote the file.
    """
    try:
        suites = list(ElementTree.parse(path).iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return Counter(error=1), 0.0
    total, seconds = Counter(), 0.0
    for suite in suites:
        outcomes = {outcome: int(suite.attrib[name]) for outcome, name in ATTRIBUTES.items()}
        total.update(outcomes, passed=int(suite.attrib["tests"]) - sum(outcomes.values()))
        seconds += float(suite.attrib["time"])
    return total, seconds


def closing_line(outcomes: Counter[str], seconds: float) -> str:
    """Return a line such as ``3 failed, 120 passed, 7 skipped in 95.21s``.

    Args:
        outcomes: Tests by outcome.
        seconds: Time for all of them.
    """
    names = ("failed", "passed", "skipped", "error")
    counted = [f"{outcomes[name]} {name}" for name in names if outcomes[name]]
    return f"{', '.join(counted) or 'no tests ran'} in {seconds:.2f}s"


if __name__ == "__main__":
    main()
