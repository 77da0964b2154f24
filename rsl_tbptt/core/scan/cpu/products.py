"""Matrix products and episode starts for the hand-written scans."""

import torch


def product_into(
    out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, factor: float, share_kept: float = 0.0
) -> torch.Tensor:
    """Set ``out`` to ``share_kept * out + factor * a @ b``; ``out`` may have another dtype.

    Shapes: ``a`` is (N, D), ``b`` (D, G), ``out`` (N, G).
    """
    if a.dtype == out.dtype:
        return out.addmm_(a, b, beta=share_kept, alpha=factor)
    product = torch.addmm(a.new_empty(()), a, b, beta=0.0, alpha=factor)
    return out.mul_(share_kept).add_(product) if share_kept else out.copy_(product)


def rows_of_steps(starts_TN: torch.Tensor) -> list[torch.Tensor | None]:
    """Return for each step the environments whose episode starts with it, None where none does.

    Shapes: ``starts_TN`` is (T, N), bool; each step's indices are (n,).
    """
    rows = starts_TN.nonzero()[:, 1].split(starts_TN.sum(1).tolist())
    return [envs if len(envs) > 0 else None for envs in rows]
