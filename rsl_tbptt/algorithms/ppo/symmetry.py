"""Symmetry is left to rsl_rl's own update, for models without memory."""

from __future__ import annotations

from rsl_tbptt.algorithms.ppo.options import PpoOptions


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
