"""Working buffers of the hand-written scans, used again and again.

Most of the time of a fresh buffer of megabytes goes into the first touch of its pages, so on the
CPU the buffers of one window serve the next one. Elsewhere torch's caching allocator does that.
"""

import math
import weakref

import torch

from rsl_tbptt.core.scan.layers import ONCE

_ALIGNMENT = 64
_MAX_FREE = 4
"""Free buffers that are kept: those of four layers."""

_free: list[torch.Tensor] = []


class Buffers:
    """Buffers of one scan, which its backward pass overwrites, and so may take only once."""

    def __init__(self, device: torch.device, *shapes: tuple[torch.dtype, tuple[int, ...]]) -> None:
        """Borrow one uninitialised buffer for each dtype and shape."""
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in shapes]
        ends = [0]
        for size in sizes:
            ends.append(ends[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        memory = _borrow(ends[-1], device)
        self._give_back = weakref.finalize(self, _give_back, memory)
        self.tensors: tuple[torch.Tensor, ...] = tuple(
            memory[start : start + size].view(dtype).view(shape)
            for start, size, (dtype, shape) in zip(ends, sizes, shapes, strict=False)
        )

    def take(self) -> tuple[torch.Tensor, ...]:
        """Return the buffers, in the shapes asked for, for the backward pass.

        Raises:
            RuntimeError: If they were taken before, or under ``create_graph=True``.
        """
        if not self.tensors or torch.is_grad_enabled():
            raise RuntimeError(ONCE)
        tensors, self.tensors = self.tensors, ()
        return tensors

    def release(self) -> None:
        """Give the buffers back; nobody may use them afterwards. Done for what is dropped, too."""
        self.tensors = ()
        self._give_back()


def free_buffers() -> None:
    """Give the memory of all free buffers back to the system."""
    _free.clear()


def _borrow(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Return at least so many bytes: the smallest free buffer that suffices, or a new one."""
    if device.type == "cpu" and not torch.is_inference_mode_enabled():
        for index in reversed(range(len(_free))):
            if _free[index].numel() >= num_bytes:
                return _free.pop(index)
        if _free:
            _free.pop()  # outgrown
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def _keep_freed_memory() -> None:
    """Let glibc keep what the update frees for the next block, instead of faulting it in again.

    It gives freed blocks above a threshold back to the system, and takes the largest block seen so
    far, up to 32 MiB, for that threshold (mallopt(3)). This block is never touched.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


def _give_back(memory: torch.Tensor) -> None:
    if memory.device.type == "cpu" and not memory.is_inference():
        _free.append(memory)
        _free.sort(key=torch.Tensor.numel, reverse=True)
        del _free[_MAX_FREE:]


_keep_freed_memory()
