"""Find operations for which the host waits for a CUDA device."""

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def waits_are_errors() -> Iterator[None]:
    """Let every operation that waits for the device raise an error."""
    try:
        with warnings.catch_warnings():  # the first call warns that the mode is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def waits_are_allowed() -> Iterator[None]:
    """Suspend :func:`waits_are_errors`."""
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("error")
