"""The scripts import each other by file name, as they do when they are run."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(REPOSITORY / "scripts"))


@pytest.fixture
def repository():
    return REPOSITORY
