"""Settings shared by all tests."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from hypothesis import settings
from support.isaaclab_page import Page
from support.isaaclab_process import IsaacLab
from support.uninitialised import poisoned

torch.set_num_threads(1)  # with small tensors, threads cost more time than they save

settings.register_profile("default", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=100, deadline=None, derandomize=True)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests of the scan engines run on another device, and all with poisoned memory."""
    parser.addoption("--device", default="cpu", help="where tests/core/scan runs: cpu or cuda")
    parser.addoption("--poisoned", action="store_true", help="fill uninitialised memory with NaN")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests in one worker that share a module's fixtures, or the runs of the page."""
    if not config.getoption("loadgroup", default=False):  # of xdist, in its workers
        return
    for item in items:
        shared = "page" if "page" in getattr(item, "fixturenames", ()) else item.path.stem
        item.add_marker(pytest.mark.xdist_group(shared))


@pytest.fixture(scope="session", autouse=True)
def uninitialised_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``--poisoned`` fill uninitialised memory with NaN, so that a read of it shows."""
    with poisoned() if request.config.getoption("--poisoned") else nullcontext():
        yield


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of ``--device``."""
    device = torch.device(str(request.config.getoption("--device")))
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.fail(f"--device is '{device}', expected 'cpu': torch sees no CUDA device.")
    return device


@pytest.fixture(scope="module")
def float64() -> Iterator[None]:
    """Build models, storages and observations of a module's tests in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def float64_here() -> Iterator[None]:
    """Run one test of a module in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the shuffle of rsl_rl and of this package by the order of the rollout."""
    monkeypatch.setattr(
        torch, "randperm", lambda n, **kwargs: torch.arange(n, device=kwargs.get("device"))
    )


@pytest.fixture(scope="session")
def isaaclab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IsaacLab]:
    """The process in which all tests run Isaac Lab; its asset server is an empty folder."""
    pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")
    folder = tmp_path_factory.mktemp("isaaclab")
    process = IsaacLab(folder, {"ISAACSIM_ASSET_ROOT": str(folder / "assets")})
    yield process
    process.close()


@pytest.fixture(scope="session")
def page(isaaclab: IsaacLab, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The commands of docs/howto/isaaclab.md; a test requests the runs that it checks."""
    return Page(isaaclab, tmp_path_factory.mktemp("page"))
