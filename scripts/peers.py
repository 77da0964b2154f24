#!/usr/bin/env python
"""Measure one gradient through a recurrent network beside other libraries.

All get the same tensors and weights: the mean squared error over a rollout with resets, from a zero
state, without an optimiser. Each is used as its documentation trains recurrent networks and timed
only if its gradient equals ours. `make .peers/.installed` installs them beside the environment.
"""

from __future__ import annotations

import argparse

from _benchmark_peers import PeerSpeed, measure_peers
from _peer_job import Job, build_ours

HEADER = """\
| peer | gradient | rsl_tbptt | ratio | lowest | highest | gradient differs by | how |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Measure and print a Markdown table."""
    args = parse_args()
    job = Job(**{name: getattr(args, name) for name in Job.__dataclass_fields__})
    print(f"{title(job)}\n\n{table(measure_peers(job, args.pairs))}")
    print(f"\nrsl_tbptt: {build_ours(job).how}.")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rnn-type", choices=["lstm", "gru"], default=Job.rnn_type)
    parser.add_argument("--num-envs", type=int, default=Job.num_envs)
    parser.add_argument("--num-steps", type=int, default=Job.num_steps)
    parser.add_argument("--done-rate", type=float, default=Job.done_rate)
    parser.add_argument("--rnn-hidden-dim", type=int, default=Job.rnn_hidden_dim)
    parser.add_argument("--device", default=Job.device, help="cpu or cuda:<index>")
    parser.add_argument("--pairs", type=int, default=5, help="gradients of each library")
    return parser.parse_args()


def title(job: Job) -> str:
    """Say what is measured."""
    return (
        f"{job.rnn_type.upper()}-{job.rnn_hidden_dim}, {job.num_envs} environments,"
        f" {job.num_steps} steps, done rate {job.done_rate}, float32, {job.device}"
    )


def table(speeds: list[PeerSpeed]) -> str:
    """Return a Markdown table, with the reason where a peer has no times."""
    return "\n".join([HEADER, *(row(speed) for speed in speeds)])


def row(speed: PeerSpeed) -> str:
    """Return one line of the table."""
    note = " ".join(speed.note.split()).replace("|", "\\|")
    if speed.times is None:
        return f"| {speed.name} | - | - | - | - | - | - | {note} |"
    times = speed.times
    return (
        f"| {speed.name} | {times.peer * 1e3:.0f} ms | {times.ours * 1e3:.0f} ms |"
        f" {times.ratio:.2f} | {times.lowest_ratio:.2f} | {times.highest_ratio:.2f} |"
        f" {times.gradient_error:.0e} | {note} |"
    )


if __name__ == "__main__":
    main()
