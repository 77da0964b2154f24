"""Time of one update beside the installed rsl_rl's: what ``rsl-tbptt bench`` does.

Both train equal networks on equal rollouts of random observations. A check sees first that both
leave equal parameters; then they are timed in turn, in one process. ``case.py`` builds what is
measured, ``speed.py`` checks and times it, ``limit.py`` says what its matrix products alone would
take, ``memory.py`` measures its peak in memory, ``profile.py`` where its time goes.

torch and rsl_rl are imported when they are needed, so that ``--help`` does not wait for them.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rsl_tbptt.tools.doctor import versions

if TYPE_CHECKING:
    from rsl_tbptt.bench.case import Case


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison.

    Args:
        parser: Of the command.
    """
    add_case_arguments(parser)
    parser.add_argument("--pairs", type=int, default=5, help="updates of each library (default: 5)")
    parser.add_argument(
        "--memory", action="store_true", help="peaks in memory as well; needs psutil, on Linux"
    )
    parser.add_argument("--profile", action="store_true", help="where our time goes, as well")


def add_case_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe what is measured.

    Args:
        parser: Of any command that measures one case.
    """
    parser.add_argument("--algorithm", choices=["ppo", "distillation"], default="ppo")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--num-steps", type=int, default=24)
    parser.add_argument("--gradient-length", type=int, default=12)
    parser.add_argument("--num-mini-batches", type=int, default=4, help="of PPO")
    parser.add_argument("--rnn-type", choices=["lstm", "gru"], default="lstm")
    parser.add_argument("--rnn-hidden-dim", type=int, default=256)
    parser.add_argument("--rnn-num-layers", type=int, default=1)
    parser.add_argument(
        "--camera-period",
        type=int,
        help="steps for which a 48x64 depth camera shows each frame, of distillation (default: no"
        " camera)",
    )
    parser.add_argument("--done-rate", type=float, default=0.05, help="share of steps that end")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--use-mixed-precision", action="store_true", help="bfloat16 products")


def case_from(args: argparse.Namespace) -> Case:
    """Build the case that the options describe.

    Args:
        args: What :func:`add_case_arguments` added.

    Returns:
        The case.

    Raises:
        ImportError: If rsl_rl is missing or none of 5.0.1 to 5.5.
        ValueError: If an option is wrong, or the device is not there.
    """
    require_models_era()
    from rsl_tbptt.bench.case import Case, check_device

    case = Case(**{name: getattr(args, name) for name in Case.__dataclass_fields__ if name in args})
    check_device(case.device)
    return case


def require_models_era() -> None:
    """Refuse rsl_rl 3.1.2, whose algorithms take another kind of model.

    Raises:
        ImportError: If rsl_rl is missing or none of 5.0.1 to 5.5.
    """
    from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era

    if rsl_rl_era() != MODELS_ERA:
        raise ImportError(
            f"rsl-rl-lib is {versions()['rsl-rl-lib']}, expected 5.0.1 to 5.5: the benchmark builds"
            " the separate models of these releases."
        )


def run(args: argparse.Namespace) -> int:
    """Compare one update with rsl_rl's and print Markdown tables.

    Args:
        args: What :func:`add_arguments` added.

    Returns:
        The exit status, 0.

    Raises:
        ImportError: If rsl_rl is missing or none of 5.0.1 to 5.5, or a package of the tables is.
        OSError: If memory is asked for on another system than Linux.
        ValueError: If an option is wrong, or the libraries do not compute the same.
    """
    case = case_from(args)
    from rsl_tbptt.bench import tables

    print(f"{tables.heading(case)}\n\n{tables.time(case, args.pairs)}")
    if args.memory:
        print(f"\n{tables.memory(case)}")
    if args.profile:
        print(f"\n{tables.profile(case)}")
    return 0
