"""Count the memory of tensors, forward and backward."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors that are created under it, forward and backward.

    It does not count earlier tensors or memory that kernels allocate inside. Tensors that a library
    packs for its kernels count as much as the unpacked ones. Example::

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
        """Run ``func`` and count new memory: behind its results and behind no argument."""
        kwargs = kwargs or {}
        given = {storage._cdata: storage.nbytes() for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            if storage._cdata not in given.keys() | self._seen:
                self._count(storage, storage._cdata, storage.nbytes())
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
