"""Matrix products and episode starts for the hand-written scans."""

import torch


def product_into(
    out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, factor: float = 1.0
) -> torch.Tensor:
    """Write ``factor * a @ b`` into ``out``, whose dtype may differ from that of the operands."""
    if a.dtype == out.dtype:
        return out.addmm_(a, b, beta=0.0, alpha=factor)
    return out.copy_(torch.addmm(a.new_empty(()), a, b, beta=0.0, alpha=factor))


def rows_of_steps(starts_TN: torch.Tensor) -> list[torch.Tensor | None]:
    """Return for each step the environments whose episode starts with it, None where none does."""
    rows = starts_TN.nonzero()[:, 1].split(starts_TN.sum(1).tolist())
    return [envs if len(envs) > 0 else None for envs in rows]
