"""Matrix products, gate factors and episode starts for the hand-written scans."""

import torch


def product_into(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Write ``a @ b`` into ``out``, whose dtype may differ from that of the operands."""
    if a.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    return out.copy_(a @ b)


def rows_of_steps(starts_TN: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return for each step the environments whose episode starts with it, T vectors."""
    return starts_TN.nonzero()[:, 1].split(starts_TN.sum(1).tolist())


def scale_gates(weights: torch.Tensor, factors: tuple[float, ...]) -> torch.Tensor:
    """Return ``weights``, shape (4H, ...), with those of each gate multiplied by its factor."""
    scale = torch.tensor(factors, dtype=weights.dtype, device=weights.device)
    return weights * scale.repeat_interleave(len(weights) // len(factors)).unsqueeze(1)
