"""Checkpoints as a GPU writes them, made without one."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from rsl_tbptt_tasks.memory import RecallEnv

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let files that are written here say that their tensors were on ``cuda:0``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        yield


def check_refused(path: object) -> None:
    """Check that torch alone cannot read a file here."""
    with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
        torch.load(str(path), weights_only=True)


def make_env(num_envs: int, seed: int, device: str) -> RecallEnv:
    """Return an environment for the tools."""
    return RecallEnv(num_envs, 3, device, seed)
