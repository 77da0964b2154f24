"""Peak of the memory that tensors take, counted operation by operation on any device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors that come into being under it, forward and backward.

    Not counted: what was there before, and what kernels take for themselves. What a library packed
    for its kernels counts as much as what it was packed from. Example::

        with PeakMemory() as memory:
            loss(model(inputs)).backward()
        memory.peak  # bytes
    """

    def __init__(self) -> None:
        """Begin at zero."""
        super().__init__()
        self.peak = 0
        self.now = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` and count the memory behind results that was behind no argument."""
        kwargs = kwargs or {}
        given = {_key(storage): storage.nbytes() for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            if _key(storage) not in given.keys() | self._seen:
                self._count(storage, _key(storage), storage.nbytes())
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided:
                self._count(leaf, id(leaf), sum(given.values()))
        return result

    def _count(self, owner: Any, key: int, size: int) -> None:
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(owner, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            yield leaf.untyped_storage()


def _key(storage: torch.UntypedStorage) -> int:
    return storage._cdata
