"""Uninitialised memory that shows: NaN, the largest integer or True wherever torch leaves it open.

`pytest --poisoned` runs with it: what reads memory before writing then fails. Child processes of
tests run without this, and so does what torch compiles or allocates in C++. Dispatch modes do not
see the fill, so counts of operations and of memory stay those of the package.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.jit import _builtins
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

PLACES = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch.Tensor, "new_empty"),
)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill what these functions return."""
    _device_constructors()  # remembers torch's own functions, which the others call
    with pytest.MonkeyPatch.context() as patch:
        for place, name in PLACES:
            patch.setattr(place, name, _filling(getattr(place, name)))
        yield


def _filling(create: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(create)
    def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = create(*args, **kwargs)
        if not torch.compiler.is_compiling() and tensor.layout == torch.strided:
            with _disable_current_modes(), torch.no_grad():
                tensor.detach().fill_(_poison(tensor.dtype))
        return tensor

    if (name := _builtins._find_builtin(create)) is not None:  # for torch.jit.script
        _builtins._register_builtin(filled, name)
    return filled


def _poison(dtype: torch.dtype) -> float | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max
