"""Matrix products of the hand-written scans: operands of one dtype, results added in another."""

import torch

_ONCE = (
    "The backward pass of this scan overwrites its buffers, so it runs once and cannot itself be"
    " differentiated: instead of retain_graph=True run the forward pass again, instead of"
    " create_graph=True use the engine 'reference'."
)


def product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``a @ b`` computed with operands of ``dtype``, in the dtype of ``a``."""
    return (a.to(dtype) @ b.to(dtype)).to(a.dtype)


def add_product(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add ``a @ b`` to ``out`` in place; ``b`` decides the dtype of the operands."""
    if b.dtype == out.dtype:
        return out.addmm_(a, b)
    return out.add_(a.to(b.dtype) @ b)


class Buffers:
    """Working buffers of one scan that its backward pass overwrites, and so may take only once."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        """Keep ``tensors``."""
        self._tensors: tuple[torch.Tensor, ...] | None = tensors

    def take(self) -> tuple[torch.Tensor, ...]:
        """Return the buffers and forget them.

        Raises:
            RuntimeError: If they were taken before, or under ``create_graph=True``.
        """
        if self._tensors is None or torch.is_grad_enabled():
            raise RuntimeError(_ONCE)
        tensors, self._tensors = self._tensors, None
        return tensors
