"""Symmetry is left to rsl_rl's own update, for models without memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rsl_tbptt.algorithms.ppo.learner import PpoLearner
from rsl_tbptt.algorithms.ppo.options import PpoOptions
from rsl_tbptt.algorithms.update.session import Metrics, UpdateSession
from rsl_tbptt.compat.versions import UPDATE_NORMALIZES


def check_symmetry(options: PpoOptions, recurrent: bool) -> None:
    """Check that symmetry can be left to rsl_rl's own update.

    Args:
        options: The options.
        recurrent: Whether actor or critic has memory.

    Raises:
        NotImplementedError: If a model is recurrent.
        ValueError: If an option is set that rsl_rl's update lacks.
    """
    if recurrent:
        raise NotImplementedError(
            "symmetry_cfg is set, expected None with a recurrent actor or critic: a mirrored"
            " sample needs the hidden state of a mirrored episode, which nobody has lived."
        )
    options.check_symmetry()


class MirroredLearner(PpoLearner):
    """Leaves the epochs to rsl_rl's own update, which mirrors the samples."""

    def __init__(self, *trained: Any, update: Callable[[], dict[str, float]], **parts: Any) -> None:
        """Take what :class:`PpoLearner` takes, and rsl_rl's update."""
        super().__init__(*trained, **parts)
        self._update = update
        self._logged: dict[str, float] = {}

    def train(self, session: UpdateSession) -> Metrics | None:
        """Run rsl_rl's update; see :class:`Learner`.

        Raises:
            RuntimeError: What rsl_rl's update raised, if that was not for NaN.
            ValueError: Likewise.
        """
        try:
            self._logged = self._update()
        except (RuntimeError, ValueError):  # rsl_rl cannot sample from a policy that is NaN
            if session.is_finite():
                raise
            return None
        if not UPDATE_NORMALIZES:
            self.update_normalization()
        device = self.trained_parameters()[0].device
        return {name: torch.tensor(value, device=device) for name, value in self._logged.items()}

    def conclude(self, metrics: dict[str, float]) -> dict[str, float]:
        """Go on in the schedules; see :class:`Learner`."""
        self.fine_tuning.count_update()
        return dict(self._logged)
