"""What the options of all algorithms share: fields, parsing, and checks of several values.

A field stands once: its name, type, default, meaning (the text below it) and check. The algorithm
parses it, the config classes of Isaac Lab and mjlab inherit it, and ``make docs`` writes the tables
of README and docs from it. Configs change after they are made, so values are checked by ``parse``.
Neither properties nor class variables: Isaac Lab's ``configclass`` would make fields of them.
"""

import dataclasses
import difflib
import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from rsl_tbptt.algorithms.auxiliary.options import HeadOptions, check_heads, parse_heads
from rsl_tbptt.algorithms.update.checks import (
    Count,
    Positive,
    check_value,
    checked_by_rsl_rl,
    known_engine,
)

ClippingNorm = Annotated[float | None, Positive(or_inf=True, hint=" Use None to not clip.")]
"""inf, too, is how configs of rsl_rl's PPO do not clip."""

AnyOptions = TypeVar("AnyOptions", bound="Options")


@dataclass(frozen=True)
class RenamedTo:
    """Marks a field as the old name of another: ``Annotated[int | None, RenamedTo("...")]``."""

    name: str


@dataclass(kw_only=True)
class Options:
    """The options that all algorithms share."""

    num_micro_batches: Annotated[int, Count()] = 1
    """Least number of micro-batches into which the environments of an optimiser step are split.

    They run one after the other. The gradient stays the same; what the update keeps in memory
    divides by about this number.
    """

    num_env_chunks: Annotated[int | None, RenamedTo("num_micro_batches")] = None
    """The old name of ``num_micro_batches``, which the next release drops."""

    memory_budget_gb: Annotated[float | None, Positive()] = None
    """Gigabytes of 10^9 bytes that an update may take beyond models, optimiser and storage.

    As many micro-batches are made as that needs, found out before training. None does not limit it.
    """

    scan_engine: Annotated[str, known_engine] = "auto"
    """How LSTM and GRU run over a window: an engine of docs/distillation.md#scan-engines.

    ``"auto"`` takes the one expected to be the fastest on the device that proved right there.
    """

    optimizer: Annotated[Literal["adam", "adamw", "sgd", "rmsprop"], checked_by_rsl_rl] = "adam"
    """The optimiser: ``"adam"``, ``"adamw"``, ``"sgd"`` or ``"rmsprop"``."""

    use_mixed_precision: bool = False
    """Whether the update's matrix products run in bfloat16.

    Parameters, state and gradients stay in float32.
    """

    grad_reduce_bucket_mb: Annotated[float, Positive()] = 25.0
    """Megabytes of the buffers in which gradients are summed over processes."""

    non_finite: Literal["skip", "raise"] = "skip"
    """What an update that meets NaN or inf does, after it was undone.

    ``"skip"`` drops the rollout, warns once per source and goes on, also where a NaN comes from the
    environment. ``"raise"`` ends the training; for one of the environment in the step itself, if
    the runner's ``check_for_nan`` is on.
    """

    max_skipped_updates: Annotated[int, Count()] = 10
    """So many skipped updates in a row end the training."""

    safe_checkpoint_interval: Annotated[int | None, Count(hint=" Use None to write none.")] = None
    """Iterations between checkpoints that the algorithm writes itself, whole or not at all.

    For Isaac Lab, whose runner writes its own in place and knows no signals:
    ``safe_<iteration>.pt`` beside them, the two newest, for ``--checkpoint``, and one before
    SIGTERM, SIGUSR1 or Ctrl+C end the training. None writes none. See docs/cluster.md#isaac-lab.
    """

    auxiliary: Annotated[dict[str, Any] | None, check_heads] = None
    """Heads that predict what the model should know from its latent, by name.

    See docs/distillation.md#auxiliary-heads. Their losses are added to the algorithm's; of PPO it
    is the actor that has them.
    """

    @classmethod
    def algorithm(cls) -> str:
        """Return the name of the class whose options they are, as one writes it in a config."""
        raise NotImplementedError

    def heads(self) -> dict[str, HeadOptions]:
        """Return the options of the auxiliary heads by name."""
        return parse_heads(self.auxiliary)

    @classmethod
    def parse(cls: type[AnyOptions], options: Mapping[str, Any]) -> AnyOptions:
        """Build the options from keyword arguments.

        Raises:
            ValueError: If a name is unknown (the nearest one is proposed) or a value is not valid.
        """
        old_names = renamed(cls)
        known = [field.name for field in dataclasses.fields(cls) if field.name not in old_names]
        for name in options:
            if name not in known and name not in old_names:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known options are {known}."
                raise ValueError(f"Unknown option '{name}' of {cls.algorithm()}: {hint}")
        parsed = cls(**options)
        for old, new in old_names.items():
            parsed._move(old, new)
        parsed.check()
        return parsed

    def _move(self, old: str, new: str) -> None:
        """Give the value under an old name to the new one.

        Raises:
            ValueError: If both are set.
        """
        value, other = getattr(self, old), getattr(self, new)
        if value is None:
            return
        if other not in (value, getattr(type(self), new)):
            raise ValueError(
                f"{old} is {value!r}, expected None with {new} {other!r}: it is the old name of"
                f" {new}."
            )
        warnings.warn(
            f"{old} is now {new}: the next release drops the old name.",
            DeprecationWarning,
            stacklevel=4,
        )
        setattr(self, old, None)
        setattr(self, new, value)

    def check(self) -> None:
        """Check what can be checked without knowing the rollout.

        Raises:
            ValueError: If a value cannot work on any rollout.
        """
        for name, annotation in typing.get_type_hints(type(self), include_extras=True).items():
            check_value(name, getattr(self, name), annotation)
        if self.memory_budget_gb is not None and self.num_micro_batches > 1:
            raise ValueError(
                f"num_micro_batches is {self.num_micro_batches}, expected 1 with memory_budget_gb"
                f" {self.memory_budget_gb}: the budget decides on the micro-batches."
            )
        default = Options.max_skipped_updates
        if self.non_finite == "raise" and self.max_skipped_updates != default:
            warnings.warn(
                f"max_skipped_updates is {self.max_skipped_updates}, which has no effect with"
                f" non_finite 'raise'. Use 'skip', or leave it at {default}.",
                stacklevel=4,
            )
        self._check_together()

    def _check_together(self) -> None:
        """Check options that only work together."""


def renamed(options: type[Options]) -> dict[str, str]:
    """Return the old names of options, each with today's."""
    hints = typing.get_type_hints(options, include_extras=True)
    return {
        name: mark.name
        for name, annotation in hints.items()
        for mark in getattr(annotation, "__metadata__", ())
        if isinstance(mark, RenamedTo)
    }
