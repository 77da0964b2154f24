"""What an optimiser step computes besides its networks: on a GPU a few Triton kernels.

In torch these are more than a hundred launches on little data, whose time goes by their number.
Results and gradients are those of the plain functions, in ``losses`` and the algorithms.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rsl_tbptt.core.losses import PolicyTerms

_BLOCK = 256
"""Samples of a program."""


def gaussian_terms(
    mean: torch.Tensor,
    std: torch.Tensor,
    actions: torch.Tensor,
    old: tuple[torch.Tensor, torch.Tensor],
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    clip: float,
) -> PolicyTerms:
    """Return PPO's terms of a diagonal Gaussian; gradients reach its mean and standard deviation.

    Args:
        mean: Means of the actions. Shape: (K, n, A).
        std: Standard deviations, of the same shape.
        actions: Actions of the rollout, of the same shape.
        old: Means and standard deviations in the rollout, of the same shape.
        old_log_prob: Log-probabilities of the actions in the rollout. Shape: (K, n).
        advantages: Advantages. Shape: (K, n).
        clip: Clip range of the probability ratio around 1.
    """
    labels = actions, old_log_prob, advantages, *old
    terms = _GaussianTerms.apply(clip, mean, std, *(label.contiguous() for label in labels))
    return PolicyTerms(*terms)


def value_error(
    values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Return the value's squared error, as ``losses.value_error`` does, of the same arguments."""
    limit = math.inf if clip is None else clip
    return _ValueError.apply(limit, *(part.contiguous() for part in (values, returns, old_values)))


def clip_gradients(
    gradients_of_models: Sequence[list[torch.Tensor]], max_norm: float
) -> list[torch.Tensor]:
    """Clip the gradients of one model, or of each of two, as ``nn.utils.clip_grad_norm_`` does.

    Returns:
        Norm of each model before clipping. Shape: () each.
    """
    together = [gradient for gradients in gradients_of_models for gradient in gradients]
    norms, number = torch.stack(torch._foreach_norm(together)), len(gradients_of_models)
    totals, factors = norms.new_empty(2, number)
    sizes, block = (len(gradients_of_models[0]), len(norms)), 1 << len(norms).bit_length()
    with torch.cuda.device_of(norms):
        _kernel("clip_factors", number)(norms, totals, factors, max_norm, *sizes, BLOCK=block)
    for gradients, factor in zip(gradients_of_models, factors, strict=True):
        if gradients:
            torch._foreach_mul_(gradients, factor)
    return [*totals]


def follow_kl(rate: torch.Tensor, kl: torch.Tensor, num_samples: int, desired_kl: float) -> None:
    """Move a learning rate, (), in place towards the desired KL divergence; see ``optimizers``.

    Args:
        rate: Learning rate. Shape: (), float64.
        kl: Sum of the KL divergences of samples. Shape: ().
        num_samples: Number of samples.
        desired_kl: The target.
    """
    with torch.cuda.device_of(rate):
        _kernel("follow_kl", 1)(rate, kl, num_samples, desired_kl)


class _GaussianTerms(torch.autograd.Function):
    """A kernel for the terms, and one for the gradients, which computes the loss again."""

    @staticmethod
    def forward(
        ctx: Any, clip: float, mean: torch.Tensor, std: torch.Tensor, *labels: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.numbers = 1.0 - clip, 1.0 + clip, mean.shape[-1]
        ctx.save_for_backward(mean, std, *labels[:-2])
        ctx.set_materialize_grads(False)
        terms = mean.new_empty(len(PolicyTerms._fields), *mean.shape[:-1])
        read = *_rows(mean), *_rows(std), *labels
        _launch("gaussian_forward", terms[0], *read, terms, *ctx.numbers)
        loss, entropy, *others = terms.unbind()
        ctx.mark_non_differentiable(*others)
        return loss, entropy, *others

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        mean, std, *labels = ctx.saved_tensors
        of_mean, of_std = mean.new_empty(2, *mean.shape)
        of_loss, of_entropy, *_ = grads
        if of_entropy is None:
            of_entropy = of_loss.new_zeros(()).expand_as(of_loss)
        read = *_rows(mean), *_rows(std), *labels, *_rows(of_loss), *_rows(of_entropy)
        _launch("gaussian_backward", of_loss, *read, of_mean, of_std, *ctx.numbers)
        return None, of_mean, of_std, *(None for _ in range(5))


class _ValueError(torch.autograd.Function):
    """A kernel for the errors and their derivatives."""

    @staticmethod
    def forward(ctx: Any, clip: float, *tensors: torch.Tensor) -> torch.Tensor:
        errors, slopes = (torch.empty_like(tensors[0]) for _ in range(2))
        _launch("value_error", errors, *tensors, errors, slopes, clip)
        ctx.save_for_backward(slopes)
        return errors

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, grads[0] * ctx.saved_tensors[0], None, None


def _rows(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return K steps of n environments, (K, n, ...), as rows, and their distance in memory.

    The distance is 0 for an expanded tensor, such as a standard deviation that is a parameter.
    """
    return (rows := tensor.flatten(0, 1)), rows.stride(0)


def _launch(name: str, samples: torch.Tensor, *arguments: Any) -> None:
    """Run a kernel over samples (..., 1) or (...)."""
    number = samples.numel()
    with torch.cuda.device_of(samples):  # Triton launches on the current device
        _kernel(name, -(-number // _BLOCK))(*arguments, number, BLOCK=_BLOCK)


def _kernel(name: str, num_programs: int) -> Callable[..., None]:
    """Return a kernel for a number of programs."""
    from rsl_tbptt.algorithms import (
        fused_kernels,  # not earlier: only on a GPU must Triton be installed
    )

    launch: Callable[..., None] = getattr(fused_kernels, name)[num_programs,]
    return launch
