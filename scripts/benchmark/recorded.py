"""Compare recorded optimiser steps with steps that run as they are: equal to the bit, how fast."""

import statistics
from dataclasses import replace

import torch
from torch.nn.utils import parameters_to_vector

from scripts.benchmark.case import Case, build, fill, milliseconds, products_in, seconds_of
from scripts.benchmark.suite import load_rows, tiny

NUM_UPDATES = 7
"""The fifth one and later ones consist of replays."""
CASES = {
    "PPO": ("trained-ppo-1024", {}),
    "distillation": ("trained-student-4096", {}),
    "fine-tuning": ("trained-ppo-1024", {"critic_warmup_iterations": 3}),
}
"""By name the benchmark's row whose case is trained, and further options."""


def train(case: Case, options: dict[str, object], *, records: bool) -> tuple:
    """Return an algorithm after some updates, and their seconds."""
    algorithm, seconds = build(case, "rsl_tbptt", record_steps=records, **options), []
    with products_in(case.precision):
        if "critic_warmup_iterations" in options:
            algorithm.load({"student_state_dict": algorithm.actor.state_dict()}, None, strict=True)
        for seed in range(NUM_UPDATES):
            fill(algorithm, case, seed)
            seconds.append(seconds_of(algorithm.update, case.device))
    return algorithm, seconds


def compare(device: str, *, quick: bool) -> bool:
    """Print a line for each case, and the traceback of a capture that failed.

    Args:
        device: Such as ``cuda:0``.
        quick: Whether to train tiny cases: to try this script.

    Returns:
        Whether all cases are equal to the bit, and recorded on a GPU.
    """
    rows, well = {row.name: row.case for row in load_rows("rows")}, True
    for name, (row, options) in CASES.items():
        case = replace(next(rows[each] for each in rows if row in each), device=device)
        case = tiny(case) if quick else case
        plain, own = train(case, options, records=False)
        recorded, taken = train(case, options, records=True)
        parameters = [parameters_to_vector(each.parameters) for each in (plain, recorded)]
        equal = torch.equal(*parameters) and bool(parameters[0].isfinite().all())
        reason = recorded.recorder.reason
        times = [milliseconds(statistics.median(each[-3:])) for each in (own, taken)]
        print(
            f"{name}: {'equal to the bit' if equal else 'DIFFERS'}, not recorded: {reason};"
            f" {times[0]} as they are, {times[1]} recorded, {recorded.recorder.num_bytes:,} bytes",
            recorded.recorder.traceback,
            sep="\n",
        )
        well &= equal and (reason is None or device == "cpu")
    return well
