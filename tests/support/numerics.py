"""The exact results of small updates, recorded so that no refactoring changes them.

Every case of ``support.cases`` makes a few updates in float64; parameters, buffers, optimisers and
metrics are read in two forms::

    bits         a digest of the exact numbers: equal before and after a change, on one machine
    projections  a few weighted sums: equal up to rounding on any machine, kept in numerics.json

``python tests/support/numerics.py`` prints both for the installed rsl_rl; ``--record`` writes the
projections of this release into the file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import sys
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path[:0] = map(str, Path(__file__).parents[1:3])  # of this checkout, the package included

from support.cases import CASES, Case  # noqa: E402

RECORDED = Path(__file__).parents[1] / "numerics.json"
NUM_PROJECTIONS = 3
NEWER_NAMES = {"episode_start_rate": "done_rate", "teacher_kl_coef": "teacher_coef"}
"""Metrics that were renamed since they were recorded."""


def release() -> str:
    """Return the installed release of rsl_rl."""
    return version("rsl-rl-lib")


def run(case: Case) -> dict[str, Any]:
    """Run a case in float64, and return its numbers: tensors by kind, metrics by name."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    metrics: dict[str, float] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            algorithm = case.build()
            for seed in range(case.num_updates):
                case.fill(algorithm, seed)
                metrics = algorithm.update()
    finally:
        torch.set_default_dtype(torch.float32)
    modules, optimizers = _changed_by(algorithm)
    return {
        "parameters": [p.detach() for module in modules for p in module.parameters()],
        "buffers": [b for module in modules for b in module.buffers()],
        "optimizer": [t for optimizer in optimizers for t in _tensors_of(optimizer)],
        "metrics": metrics,
    }


def bits(numbers: dict[str, Any]) -> dict[str, str]:
    """Digest tensors exactly, metrics to ten digits because their order of summation may vary."""
    digests = {
        name: hashlib.sha256(
            b"".join(t.cpu().contiguous().numpy().tobytes() for t in tensors)
        ).hexdigest()[:16]
        for name, tensors in numbers.items()
        if name != "metrics"
    }
    named = {
        name: f"{value:.10g}"
        for name, value in sorted(numbers["metrics"].items())
        if name not in NEWER_NAMES.values()
    }
    return {**digests, "metrics": json.dumps(named)}


def projections(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return weighted sums of each kind of tensor, and the metrics."""
    sums = {}
    for name, tensors in numbers.items():
        if name != "metrics":
            vector = torch.cat(
                [
                    torch.zeros(1, dtype=torch.float64),
                    *(t.flatten().double().cpu() for t in tensors),
                ]
            )
            places = torch.arange(len(vector), dtype=torch.float64)
            sums[name] = [
                float(vector @ torch.cos((1.0 + 0.618 * k) * places))
                for k in range(NUM_PROJECTIONS)
            ]
    return {**sums, "metrics": dict(sorted(numbers["metrics"].items()))}


def _changed_by(algorithm: Any) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    """Return the tensors that an update changes."""
    if hasattr(algorithm, "policy"):
        modules = [algorithm.policy]
    else:
        roles = ("teacher", "critic")
        others = [getattr(algorithm, role) for role in roles if hasattr(algorithm, role)]
        modules = [algorithm.get_policy(), *others]
    optimizers = [algorithm.optimizer]
    rnd = getattr(algorithm, "rnd", None)
    if rnd:
        modules.append(rnd)
        optimizers.append(getattr(rnd, "optimizer", None) or algorithm.rnd_optimizer)
    return modules, optimizers


def _tensors_of(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """Return the state of an optimiser and the learning rates, as tensors."""
    for entries in optimizer.state.values():
        yield from (torch.as_tensor(value).detach() for value in entries.values())
    for group in optimizer.param_groups:
        yield torch.tensor(group["lr"], dtype=torch.float64)


def main() -> None:
    """Print the numbers of the installed release, or record them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    args = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints what it does
        numbers = {name: run(case) for name, case in CASES.items()}
    if args.record:
        recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        recorded[release()] = {name: projections(found) for name, found in numbers.items()}
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    print(json.dumps({name: bits(found) for name, found in numbers.items()}, indent=1))


if __name__ == "__main__":
    main()
