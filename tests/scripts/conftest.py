"""The scripts are imported from the root of the checkout, as they are when they are run."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(REPOSITORY / "scripts"))
sys.path.insert(0, str(REPOSITORY))


@pytest.fixture
def repository():
    return REPOSITORY
