"""Step-counting curricula continue at the checkpoint's step.

Environments of Isaac Lab and mjlab count their steps in ``common_step_counter``, which curricula
read. A checkpoint keeps the counter; the next training takes it over at its first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COUNTER = "common_step_counter"
STATE = "env_state"
"""Key of the counter's entry; mjlab's runner has the same among ``infos``."""


class Curricula:
    """The environment's step counter in checkpoints. Without a counter it has no effect.

    The counter goes on from that of the loaded checkpoint: of this training, of a teacher, or of
    the student that PPO trains.
    """

    _env: Any = None
    _begins_at: int | None = None

    def join(self, env: Any) -> None:
        """Take the environment, wrapped or not."""
        inner = getattr(env, "unwrapped", env)
        self._env = inner if hasattr(inner, COUNTER) else None

    def go_on_from(self, checkpoint: Mapping[str, Any]) -> None:
        """Let the next training begin at the stage of a checkpoint, of any release, as read."""
        self._begins_at = counted_steps(checkpoint)

    def begin_rollout(self) -> None:
        """Set the counter; not before, since a policy that only plays keeps its own."""
        count_from(self._env, self._begins_at)
        self._begins_at = None

    def saved(self) -> dict[str, Any]:
        """Return the counter's entry of a checkpoint; empty without a counter."""
        if self._env is None:
            return {}
        counted = int(getattr(self._env, COUNTER))
        return {STATE: {COUNTER: counted if self._begins_at is None else self._begins_at}}


def count_from(env: Any, steps: int | None) -> None:
    """Set the step counter of an environment, wrapped or not; without counter or steps do nothing.

    Curricula act at the next reset.
    """
    inner = getattr(env, "unwrapped", env)
    if steps is not None and hasattr(inner, COUNTER):
        setattr(inner, COUNTER, steps)


def counted_steps(checkpoint: Mapping[str, Any]) -> int | None:
    """Return the steps that a checkpoint's environment had counted, None if it does not tell.

    Args:
        checkpoint: The checkpoint of any release, as it was read. rsl_rl's own has no counter.
    """
    of_optimizer = checkpoint.get("optimizer_state_dict") or {}  # where rsl_rl 3 has our part
    of_any = checkpoint.get("rsl_tbptt"), of_optimizer.get("rsl_tbptt"), checkpoint.get("infos")
    for part in of_any:
        if isinstance(part, Mapping) and STATE in part:
            return part[STATE][COUNTER]
    return None
