"""The limits of what is healthy: one table, for warnings in training and for ``doctor``.

docs/health.md gives the reason of each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Where a metric leaves its healthy range, and what may help."""

    bound: float
    """The last healthy value."""

    below: bool = False
    """Whether values below it are ill; else those above."""

    updates: int
    """After so many updates in a row there is a warning."""

    meaning: str
    """What an ill value says, in words."""

    advice: str
    """Which option to try."""

    def broken(self, value: float) -> bool:
        """Return whether a value is ill."""
        return value < self.bound if self.below else value > self.bound

    def describe(self, name: str, value: float) -> str:
        """Say in a sentence what is ill; ``name`` is the metric's."""
        rule = f"at {'least' if self.below else 'most'} {self.bound:g}"
        return f"Loss/{name} is {value:.3g}, expected {rule}: {self.meaning}."


_OF_TEACHER = (
    "The teacher does not fit its observations: compare its obs_groups, their order, units and"
    " scales, and obs_normalization with those of its training."
)

LIMITS = {
    "replay_difference": Limit(
        bound=0.2,
        updates=5,
        meaning="the replay of the rollout gives the actions other probabilities than the rollout"
        " itself, so samples are clipped before anything has been learned",
        advice="Try use_mixed_precision=False and scan_engine='reference', and look for what is"
        " random or changes inside the model: dropout, batch normalisation.",
    ),
    "clip_fraction": Limit(
        bound=0.5,
        updates=10,
        meaning="most samples end up clipped: the policy moves further in an update than the"
        " surrogate loss can tell",
        advice="Lower learning_rate or num_learning_epochs, or use schedule='adaptive'.",
    ),
    "kl": Limit(
        bound=0.1,
        updates=10,
        meaning="an update moves the policy far from the one that acted",
        advice="Lower learning_rate, or use schedule='adaptive' with desired_kl=0.01.",
    ),
    "explained_variance/critic": Limit(
        bound=-0.5,
        below=True,
        updates=20,
        meaning="the critic's values are much worse than a constant",
        advice="Lower learning_rate, set use_clipped_value_loss=False where returns are many times"
        " clip_param, or give the critic more to see.",
    ),
    "explained_variance/student": Limit(
        bound=0.05,
        below=True,
        updates=100,
        meaning="the student does no better than a constant action",
        advice="Look whether what tells the teacher's actions is in the student's obs_groups at all"
        " and changes (a camera that is black or frozen), and whether a memory is asked for that it"
        " lacks or that gradient_length is too short for. Far below 0, lower learning_rate.",
    ),
    "saturated_units": Limit(
        bound=0.5,
        updates=20,
        meaning="most units of the memory are stuck at -1 or 1, where hardly any gradient passes",
        advice="Normalise observations (obs_normalization=True), lower learning_rate or"
        " max_grad_norm.",
    ),
    "dead_units": Limit(
        bound=0.5,
        updates=20,
        meaning="most units of the memory never move, whatever is observed",
        advice="Normalise observations (obs_normalization=True); look whether they change at all.",
    ),
    "grad_norm_jump": Limit(
        bound=10.0,
        updates=5,
        meaning="gradients are many times larger than they used to be",
        advice="Lower learning_rate or max_grad_norm, or shorten gradient_length.",
    ),
    "obs_scale": Limit(
        bound=100.0,
        updates=10,
        meaning="a network sees a value of that size without a normaliser, beside which it cannot"
        " tell others",
        advice="Set obs_normalization=True of that model, or image_scale for images, or scale the"
        " group in the environment.",
    ),
    "obs_scale/teacher": Limit(
        bound=100.0,
        updates=10,
        meaning="the teacher sees a value of that size without a normaliser",
        advice=_OF_TEACHER,
    ),
    "normalized_obs_scale": Limit(
        bound=10.0,
        updates=10,
        meaning="normalised observations are not of size 1: the normaliser has learned from others",
        advice="Look what has changed since the checkpoint that training began with: units, scales"
        " and order of obs_groups.",
    ),
    "normalized_obs_scale/teacher": Limit(
        bound=10.0,
        updates=10,
        meaning="the teacher's normaliser has learned from other observations than these",
        advice=_OF_TEACHER,
    ),
    "label_scale": Limit(
        bound=100.0,
        updates=10,
        meaning="the teacher's actions explode",
        advice=_OF_TEACHER,
    ),
    "label_std": Limit(
        bound=1e-4,
        below=True,
        updates=10,
        meaning="the teacher says the same everywhere",
        advice=_OF_TEACHER,
    ),
}
"""By metric, or by the first parts of its name: of ``obs_scale/teacher/policy`` the first two."""


def limit_of(name: str) -> Limit | None:
    """Return the limit of a metric, if it has one."""
    parts = name.split("/")
    return LIMITS.get("/".join(parts[:2])) or LIMITS.get(parts[0])
