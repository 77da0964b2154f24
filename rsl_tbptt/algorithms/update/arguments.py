"""What the constructors take, stated to type checkers and to ``help()`` without a second list.

And the keys of the runner's config, in which a mistyped one would have no effect.
"""

import difflib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

P = ParamSpec("P")

RUNNER_KEYS = """
    actor algorithm check_for_nan clip_actions class_name critic device empirical_normalization
    experiment_name heartbeat_timeout_s init_at_random_ep_len keep_best keep_last load_checkpoint
    load_run logger max_iterations multi_gpu neptune_project num_steps_per_env obs_groups policy
    resume run_name save_interval seed student teacher torch_compile_mode upload_model
    wandb_project wandb_tags
"""
"""Those of rsl_rl's runners, of the config classes of Isaac Lab and mjlab, and of our runners."""


def check_runner_keys(train_cfg: Mapping[str, Any]) -> None:
    """Refuse a runner's config with a key that is almost one of ``RUNNER_KEYS``.

    Others are taken: they may be those of a user's own runner.

    Raises:
        ValueError: If there is one; names what was meant.
    """
    known = RUNNER_KEYS.split()
    for key in train_cfg:
        spelled = str(key).lower().replace("-", "_")
        near = difflib.get_close_matches(spelled, known, n=1, cutoff=0.85)
        if near and key not in known:
            raise ValueError(f"Unknown key '{key}' of the runner: did you mean '{near[0]}'?")


@dataclass(kw_only=True)
class RunnerArguments:
    """What rsl_rl gives every algorithm beside models, storage and options."""

    device: str = "cpu"
    """Device of the update."""

    multi_gpu_cfg: dict[str, Any] | None = None
    """rsl_rl's description of the processes, or None for one process."""

    rnd_cfg: dict[str, Any] | None = None
    """rsl_rl's description of random network distillation, or None. None in distillation."""

    symmetry_cfg: dict[str, Any] | None = None
    """rsl_rl's description of symmetries, or None. None in distillation."""


def takes(
    arguments: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Declare that a constructor takes what a dataclass takes; it runs as it is written.

    Args:
        arguments: The dataclass. Its fields become the parameters, with types and defaults.

    Returns:
        A decorator of ``__init__``.
    """
    types = typing.get_type_hints(arguments)  # without the checks that the options' types carry
    parameters = [
        parameter.replace(annotation=types[name])
        for name, parameter in inspect.signature(arguments).parameters.items()
    ]
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([self, *parameters], return_annotation=None)

    def declare(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        vars(constructor)["__signature__"] = signature
        return constructor

    return declare
