"""Triton kernels of ``fused``. Those of losses run over samples, each a row of A actions.

They compare as the plain functions do, so that NaN reaches the same results.
"""

# Pyright reads calls of compiled functions as errors, which they are outside kernels.
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl
from triton.language import constexpr

HALF_LOG_TAU = constexpr(0.9189385332046727)
"""log(2 pi) / 2."""


@triton.jit
def _clamp(x, low, high):
    """Return x within limits; ``tl.minimum`` and ``tl.maximum`` would drop NaN."""
    return tl.where(x > high, high, tl.where(x < low, low, x))


@triton.jit
def _action(mean, mean_row, std, std_row, actions, row, here, a, A: constexpr):
    """Return the mean and standard deviation of action a, and the standardised action."""
    center = tl.load(mean + row * mean_row + a, here, 0.0)
    scale = tl.load(std + row * std_row + a, here, 1.0)
    return center, scale, (tl.load(actions + row * A + a, here, 0.0) - center) / scale


@triton.jit
def _surrogate(log_prob, old_log_prob, advantages, low, high, row, here):
    """Return the loss without clipping, its bound, and whether the ratio is clipped there."""
    ratio = tl.exp(log_prob - tl.load(old_log_prob + row, here, 0.0))
    cost, clipped = -tl.load(advantages + row, here, 0.0), _clamp(ratio, low, high)
    return cost * ratio, cost * clipped, ratio != clipped


@triton.jit
def gaussian_forward(
    mean, mean_row, std, std_row, actions, old_log_prob, advantages, old_mean, old_std, terms,
    low, high, A: constexpr, R, BLOCK: constexpr,
):  # fmt: skip
    """Store the fields of ``PolicyTerms``. Shape of ``terms``: (5, R)."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = row < R
    zeros = tl.full((BLOCK,), 0.0, terms.dtype.element_ty)
    log_prob, entropy, kl = zeros, zeros, zeros
    for a in range(0, A):
        center, scale, z = _action(mean, mean_row, std, std_row, actions, row, here, a, A)
        log_prob -= 0.5 * z * z + tl.log(scale) + HALF_LOG_TAU
        entropy += tl.log(scale) + (0.5 + HALF_LOG_TAU)
        distance = (tl.load(old_mean + row * A + a, here, 0.0) - center) / scale
        width = tl.load(old_std + row * A + a, here, 1.0) / scale
        kl += 0.5 * (width * width + distance * distance - 1.0 - tl.log(width * width))
    loss, bound, is_clipped = _surrogate(log_prob, old_log_prob, advantages, low, high, row, here)
    tl.store(terms + row, tl.where(loss >= bound, loss, bound), here)
    tl.store(terms + R + row, entropy, here)
    tl.store(terms + 2 * R + row, kl, here)
    tl.store(terms + 3 * R + row, zeros + tl.where(is_clipped, 1.0, 0.0), here)
    tl.store(terms + 4 * R + row, log_prob, here)


@triton.jit
def gaussian_backward(
    mean, mean_row, std, std_row, actions, old_log_prob, advantages,
    grad_loss, grad_loss_row, grad_entropy, grad_entropy_row, grad_mean, grad_std,
    low, high, A: constexpr, R, BLOCK: constexpr,
):  # fmt: skip
    """Store the gradients of means and standard deviations. Shape: (R, A) each."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = row < R
    log_prob = tl.full((BLOCK,), 0.0, grad_mean.dtype.element_ty)
    for a in range(0, A):
        _, scale, z = _action(mean, mean_row, std, std_row, actions, row, here, a, A)
        log_prob -= 0.5 * z * z + tl.log(scale) + HALF_LOG_TAU
    loss, bound, _is_clipped = _surrogate(log_prob, old_log_prob, advantages, low, high, row, here)
    of_loss = tl.load(grad_loss + row * grad_loss_row, here, 0.0)
    of_log_prob = of_loss * loss * tl.where(loss >= bound, 1.0, 0.0)
    of_entropy = tl.load(grad_entropy + row * grad_entropy_row, here, 0.0)
    for a in range(0, A):
        _, scale, z = _action(mean, mean_row, std, std_row, actions, row, here, a, A)
        tl.store(grad_mean + row * A + a, of_log_prob * z / scale, here)
        of_std = (of_log_prob * (z * z - 1.0) + of_entropy) / scale
        tl.store(grad_std + row * A + a, of_std, here)


@triton.jit
def value_error(values, returns, old_values, errors, slopes, clip, R, BLOCK: constexpr):
    """Store the squared errors of values and their derivatives. Shape: (R,) each."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = row < R
    value, target = tl.load(values + row, here, 0.0), tl.load(returns + row, here, 0.0)
    old = tl.load(old_values + row, here, 0.0)
    change = value - old
    error, clipped = value - target, old + _clamp(change, -clip, clip) - target
    is_larger = tl.abs(error) >= tl.abs(clipped)
    error = tl.where(is_larger, error, clipped)
    tl.store(errors + row, error * error, here)
    has_slope = is_larger | (tl.abs(change) <= clip)
    tl.store(slopes + row, tl.where(has_slope, 2.0 * error, 0.0), here)


@triton.jit
def add(a, b):
    """Return the sum."""
    return a + b


@triton.jit
def clip_factors(norms, totals, factors, max_norm, split, P, BLOCK: constexpr):
    """Store norm and clip factor of a model; the second one's parameters begin at ``split``."""
    model, i = tl.program_id(0), tl.arange(0, BLOCK)
    here = tl.where(i < split, 0, 1) == model
    norm = tl.load(norms + i, here & (i < P), 0.0)
    total = tl.sqrt(tl.reduce(norm * norm, 0, add))
    factor = max_norm / (total + 1e-6)
    tl.store(totals + model, total)
    tl.store(factors + model, tl.where(factor > 1.0, 1.0, factor))


@triton.jit
def follow_kl(rate, kl, num_samples, desired_kl):
    """Store the new rate."""
    before, mean = tl.load(rate), tl.load(kl) / num_samples
    least, most = tl.full((), 1e-5, tl.float64), tl.full((), 1e-2, tl.float64)
    slower, faster = tl.maximum(before / 1.5, least), tl.minimum(before * 1.5, most)
    is_small = (mean > 0.0) & (mean < desired_kl / 2.0)
    tl.store(rate, tl.where(mean > desired_kl * 2.0, slower, tl.where(is_small, faster, before)))
