"""Health of the training: metrics of an update, the table of limits, and one warning per limit.

Health metrics do not influence training and add no host-device synchronisation. Most are measured
once an update, in the replay before its first optimiser step, when the models are still those of
the rollout. docs/howto/health.md gives the reason of each limit.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn


@dataclass(frozen=True)
class Limit:
    """The healthy range of a metric, and advice for values outside it."""

    bound: float
    """The last healthy value."""

    updates: int
    """Number of consecutive updates outside the range that cause a warning."""

    advice: str
    """Meaning of an unhealthy value, and options to try."""

    below: bool = False
    """Whether values below the bound are unhealthy; otherwise those above are."""

    def broken(self, value: float) -> bool:
        """Return whether a value is unhealthy."""
        return value < self.bound if self.below else value > self.bound

    def describe(self, name: str, value: float) -> str:
        """Return a message with the problem and the advice; ``name`` is the metric's."""
        rule = f"at {'least' if self.below else 'most'} {self.bound:g}"
        return f"Loss/{name} is {value:.3g}, expected {rule}: {self.advice}"


_NORMALIZE = "Set obs_normalization=True"
_OF_TEACHER = (
    "the teacher does not fit its observations: compare obs_groups, their order, units and scales,"
    " and obs_normalization with those of its training."
)

HELD_OUT = "held_out/"
"""Prefix of metrics of environments that enter no loss."""
RETURN, RETURN_ERROR = f"{HELD_OUT}return", f"{HELD_OUT}return_error"
"""Mean return of each held-out environment's newest episode, and its standard error."""

_STUDENT, _STUDENT_HELD_OUT = "explained_variance/student", f"{HELD_OUT}explained_variance"
_OF_STUDENT = Limit(
    0.05,
    100,
    "the student does no better than a constant action. Check that its obs_groups determine the"
    " teacher's actions, and that gradient_length covers what it has to remember.",
    below=True,
)

LIMITS = {
    "replay_difference": Limit(
        0.2,
        5,
        "the replay gives actions other probabilities than the rollout. Try scan_engine='reference'"
        " and use_mixed_precision=False; look for dropout and batch normalisation.",
    ),
    "clip_fraction": Limit(
        0.5,
        10,
        "most samples are clipped. Lower learning_rate or num_learning_epochs, or use"
        " schedule='adaptive'.",
    ),
    "kl": Limit(
        0.1,
        10,
        "an update moves the policy far. Lower learning_rate, or use schedule='adaptive' with"
        " desired_kl=0.01.",
    ),
    "value": Limit(
        1e10,
        5,
        "values are wrong by more than 100,000. Scale the rewards so that returns are of size 1 to"
        " 100; from about 1e19 an update cannot square them.",
    ),
    "explained_variance/critic": Limit(
        -0.5,
        20,
        "the critic is much worse than a constant. Lower learning_rate, give the critic more"
        " observations, or set use_clipped_value_loss=False if returns are many times clip_param.",
        below=True,
    ),
    _STUDENT: _OF_STUDENT,
    _STUDENT_HELD_OUT: _OF_STUDENT,
    "saturated_units": Limit(
        0.5,
        20,
        "most units of the memory are stuck at -1 or 1, where hardly any gradient passes."
        f" {_NORMALIZE}, lower learning_rate or max_grad_norm.",
    ),
    "dead_units": Limit(
        0.5,
        20,
        f"most units of the memory never change. {_NORMALIZE}; check that observations change.",
    ),
    "grad_norm_jump": Limit(
        10.0, 5, "gradients have grown. Lower learning_rate, max_grad_norm or gradient_length."
    ),
    "obs_scale": Limit(
        100.0,
        10,
        f"a network sees such a value without a normaliser. {_NORMALIZE} of that model, or"
        " image_scale for images, or scale the group in the environment.",
    ),
    "obs_scale/teacher": Limit(100.0, 10, _OF_TEACHER),
    "normalized_obs_scale": Limit(
        10.0,
        10,
        "the normaliser was trained on other observations: compare units, scales and order of"
        " obs_groups with those of the checkpoint that training began with.",
    ),
    "normalized_obs_scale/teacher": Limit(10.0, 10, _OF_TEACHER),
    "label_scale": Limit(100.0, 10, f"the teacher's actions explode; {_OF_TEACHER}"),
    "label_std": Limit(
        0.0001, 10, f"the teacher's actions are always the same; {_OF_TEACHER}", below=True
    ),
}
"""Limits by metric, or by the first one or two parts of its name ("obs_scale/teacher")."""


def limit_of(name: str) -> Limit | None:
    """Return the limit of a metric, if it has one."""
    parts = name.split("/")
    return LIMITS.get("/".join(parts[:2])) or LIMITS.get(parts[0])


def limits_of(names: Iterable[str]) -> dict[str, Limit]:
    """Return the limits of metrics that have one; of two for the same fault the held-out one's."""
    limits = {name: limit for name in names if (limit := limit_of(name))}
    if _STUDENT_HELD_OUT in limits:
        limits.pop(_STUDENT, None)
    return limits


SATURATED = 0.99
"""A unit of the memory is saturated beyond this value; its gate has 2 % of its slope there."""
STILL = 1e-3
"""A unit is dead if its output moves by less than this, of a range of 2."""

_NUM_ROWS = 4096
"""Samples to measure per window; fewer than twice as many are used, which takes no time."""
_NUM_IMAGES = 256
"""Environments whose images are measured."""
_NUM_NORMS, _LEAST_NORMS = 20, 10
"""Updates in the median of gradient norms: at most and at least."""


class FirstReplay:
    """Measurements of the replay before an update's first optimiser step, summed on the device."""

    def __init__(self) -> None:
        """Start disabled; ``watching()`` enables collection."""
        self._watches = False
        self._forget()

    def _forget(self) -> None:
        # Running values, not lists: an update may be split into any number of pieces.
        self._memory: tuple[int, torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._ratio: torch.Tensor | None = None
        self._labels: tuple[int, torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @contextlib.contextmanager
    def watching(self, first: bool) -> Iterator[None]:
        """If ``first``, measure the replay inside and drop earlier measurements."""
        if first:
            self._forget()
        self._watches = first
        try:
            yield
        finally:
            self._watches = False

    @torch.no_grad()
    def see_memory(self, outputs: torch.Tensor) -> None:
        """Measure the outputs of the recurrent layers. Shape: (rows, H)."""
        if not self._watches:
            return
        rows = outputs[:: max(1, len(outputs) // _NUM_ROWS)]
        count, low, high = rows.numel(), rows.amin(0), rows.amax(0)
        saturated = (rows.abs() > SATURATED).sum()
        if self._memory is not None:
            earlier, lowest, highest, so_far = self._memory
            count, saturated = count + earlier, saturated + so_far
            low, high = torch.minimum(low, lowest), torch.maximum(high, highest)
        self._memory = (count, low, high, saturated)

    @torch.no_grad()
    def see_log_ratio(self, log_prob: torch.Tensor, old_log_prob: torch.Tensor) -> None:
        """Measure log-probabilities of actions: replayed and in the rollout. Shape: (K, n)."""
        if not self._watches:
            return
        largest = (log_prob - old_log_prob).exp().sub(1.0).abs().max()
        self._ratio = largest if self._ratio is None else torch.maximum(self._ratio, largest)

    @torch.no_grad()
    def see_labels(self, actions: torch.Tensor, labels: torch.Tensor) -> None:
        """Measure actions and their labels, shape (K, n, A) each; pool with earlier measurements.

        References:
            Chan, Golub and LeVeque (1983), The American Statistician 37(3), on pooled variances.
        """
        if not self._watches:
            return
        count = labels.shape[0] * labels.shape[1]
        error = (actions - labels).square().mean((0, 1))
        variance, mean = torch.var_mean(labels, (0, 1), correction=0)
        if self._labels is not None:
            earlier, old_error, old_variance, old_mean = self._labels
            count += earlier
            share = earlier / count
            apart = share * (1.0 - share) * (old_mean - mean).square()
            error = torch.lerp(error, old_error, share)
            variance = torch.lerp(variance, old_variance, share) + apart
            mean = torch.lerp(mean, old_mean, share)
        self._labels = (count, error, variance, mean)

    @torch.no_grad()
    def metrics(self) -> dict[str, torch.Tensor]:
        """Return the measurements by name. Shape: () each."""
        measured = {}
        if self._ratio is not None:
            measured["replay_difference"] = self._ratio
        if self._memory is not None:
            count, low, high, saturated = self._memory
            measured["saturated_units"] = saturated / count
            measured["dead_units"] = ((high - low) < STILL).to(torch.float32).mean()
        if self._labels is not None:
            _, error, variance, mean = self._labels
            measured[_STUDENT] = explained(error.sum(), variance.sum())
            measured["label_std"] = variance.sqrt().max()
            measured["label_scale"] = (variance + mean.square()).sqrt().max()
        return measured


def explained(error: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Return the share of a variance that is explained, given a mean squared error; at least -1.

    1 is perfect, 0 as good as a constant, below 0 worse. If nothing varies, the result is 1. Shape
    of arguments and result: ().
    """
    share = 1.0 - error / variance.clamp(min=torch.finfo(variance.dtype).tiny)
    return torch.where(variance > 0, share.clamp(min=-1.0), 1.0)


@torch.no_grad()
def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    """Return the share of the returns' variance that values explain, of any shape, to ()."""
    return explained((returns - values).var(correction=0), returns.var(correction=0))


@torch.no_grad()
def obs_scales(models: Mapping[str, Any], obs: TensorDict) -> dict[str, torch.Tensor]:
    """Measure the networks' inputs from one step's observations.

    Args:
        models: Models by role. Integers are left out. So are images of integers if a model has no
            ``image_scale``: it scales them itself.
        obs: Observations of one step, batch size (N,).

    Returns:
        The root mean square of the largest element by role and group, shape () each, under
        ``obs_scale/ROLE/GROUP``, or after a normaliser ``normalized_obs_scale/ROLE/GROUP``.
    """
    scales = {}
    for role, model in models.items():
        scale = getattr(model, "image_scale", None)
        for group in getattr(model, "obs_groups_2d", ()):
            if scale is not None or obs[group].is_floating_point():
                images = obs[group][:_NUM_IMAGES].float() * (1.0 if scale is None else scale)
                scales[f"obs_scale/{role}/{group}"] = images.square().mean(0).max().sqrt()
        normalizer = getattr(model, "obs_normalizer", None)
        groups = [group for group in getattr(model, "obs_groups", ()) if group in obs]
        if normalizer is None or not groups or len(groups) < len(model.obs_groups):
            continue
        raw = [obs[group] for group in groups]
        if not all(part.is_floating_point() for part in raw):
            continue
        read = normalizer(torch.cat(raw, dim=-1)).split([part.shape[-1] for part in raw], dim=-1)
        kind = "obs_scale" if isinstance(normalizer, nn.Identity) else "normalized_obs_scale"
        for group, part in zip(groups, read, strict=True):
            # NaN is ignored: the student's is found by the update, the teacher's may have weight 0.
            scales[f"{kind}/{role}/{group}"] = part.square().nanmean(0).max().sqrt()
    return scales


class HealthWatch:
    """Follows the metrics over updates; warns once for each that stays outside its limit."""

    def __init__(self) -> None:
        """Start without history."""
        self._in_a_row: dict[str, int] = {}
        self._warned: set[str] = set()
        self._norms: dict[str, deque[float]] = {}

    def __call__(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Record an update's metrics and warn if needed.

        Returns:
            A derived metric: ``grad_norm_jump``, a gradient norm divided by its median over the
            last updates, the largest if there are several.
        """
        norms = {name: v for name, v in metrics.items() if name.endswith("grad_norm")}
        derived = {"grad_norm_jump": self._jump(norms)} if norms else {}
        values = {**metrics, **derived}
        for name, limit in limits_of(values).items():
            if name in self._warned:
                continue
            value = values[name]
            self._in_a_row[name] = self._in_a_row.get(name, 0) + 1 if limit.broken(value) else 0
            if self._in_a_row[name] == limit.updates:
                self._warned.add(name)
                warnings.warn(limit.describe(name, value), stacklevel=5)
        return derived

    def _jump(self, norms: Mapping[str, float]) -> float:
        jumps = [1.0]
        for name, norm in norms.items():
            past = self._norms.setdefault(name, deque(maxlen=_NUM_NORMS))
            if len(past) >= _LEAST_NORMS and (usual := median(past)) > 0:
                jumps.append(norm / usual)
            past.append(norm)
        return max(jumps)
