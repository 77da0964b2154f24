"""Import the scripts from the root of the checkout, as when they run."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(REPOSITORY / "scripts"))
sys.path.insert(0, str(REPOSITORY))


@pytest.fixture
def repository():
    return REPOSITORY
