"""Export a checkpoint's policy as a bundle for robots, compared with the trained policy.

A bundle is a folder. ``policy.onnx`` has the state as inputs and outputs. ``policy.pt`` is
TorchScript with the state inside, if torch still supports that. ``policy.json`` and ``README.md``
describe inputs and outputs. ``golden.npz`` is a trajectory to check any program that runs the
policy.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rsl_tbptt.deploy import METADATA
from rsl_tbptt.files import complete, output_path, write_json
from rsl_tbptt.tools.platforms import load_platform, platform_of
from rsl_tbptt.tools.robot import golden
from rsl_tbptt.tools.robot.bundle import Recorded, write_bundle
from rsl_tbptt.tools.robot.targets import TARGETS
from rsl_tbptt.tools.robot.verify import verify
from rsl_tbptt.tools.simulate.evaluate import started
from rsl_tbptt.tools.simulate.heads import saved_heads
from rsl_tbptt.tools.simulate.policies import (
    Images,
    SavedPolicy,
    build_policy,
    check_images,
    groups_of,
    read_policy,
    split_into_groups,
)

MARK = b'"state_names"'
"""Bytes in the ``policy.json`` of every bundle."""


def export(
    checkpoint: Path,
    output: Path | None = None,
    *,
    agent: Path | None = None,
    trust: Sequence[str] = (),
    images: Images | None = None,
    single_input: bool = False,
    target: Sequence[str] = (),
    steps: int = 200,
    tolerance: float = 1e-4,
    seed: int = 0,
    drawn: bool = False,
    **where: Any,
) -> dict[str, Any]:
    """Export a checkpoint's policy; write files only if they act like the trained policy.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.
        output: New folder, or that of an earlier export, whose files are replaced. None means a new
            ``exported/model_<iteration>`` next to the checkpoint.
        agent: See :func:`rsl_tbptt.tools.simulate.policies.read_policy`, as for ``trust``.
        trust: Likewise.
        images: Likewise.
        single_input: Let ONNX take one ``obs`` of all groups joined.
        target: Names in :data:`rsl_tbptt.tools.robot.targets.TARGETS`; each gets a folder.
        steps: Length of the golden trajectory, at least 2.
        tolerance: Largest difference of an action, or of a head's prediction, that passes.
        seed: Seed of the trajectory.
        drawn: Draw its observations instead of simulating the policy's task. They are also drawn
            if the platform is not installed, and for rsl_rl alone without ``task``.
        where: ``platform_name``, ``task``, ``overrides`` and ``device`` of the simulation; see
            :func:`rsl_tbptt.tools.simulate.evaluate.started`.

    Returns:
        The content of ``policy.json``, and ``output``: the folder, or None if a difference is too
        large.

    Raises:
        FileNotFoundError: If the config next to the checkpoint is missing.
        ValueError: If the checkpoint cannot be read, its policy is missing or does not fit the
            config, its task is unknown to its platform, ``steps`` is below 2, nothing can be
            written to ``output``, or it has targets of an earlier export that ``target`` does not
            name.
    """
    if steps < 2:
        raise ValueError(f"steps is {steps}, expected at least 2: one step shows no memory.")
    saved = read_policy(checkpoint, agent, trust)
    check_images(saved, images or {})
    heads = saved_heads(saved.auxiliary)
    # Not in exported/ itself: Isaac Lab's play writes there and would replace the compared files.
    name = checkpoint.stem.replace(".", "_")  # output_path takes a name with a dot for a file
    output = output_path(output, checkpoint.parent / "exported" / name, MARK, METADATA)
    _refuse_other_targets(output, target)
    if drawn or not _can_simulate(checkpoint, where):
        recorded = _drawn(saved, images or {}, heads, steps, seed)
    else:
        recorded = _simulated(checkpoint, heads, steps, seed, agent=agent, trust=trust, **where)
    about = {"checkpoint": checkpoint.name, "iteration": saved.iteration}
    forms = {"single_input": single_input, "targets": target}
    return _write_compared(output, tolerance, recorded, heads, saved.robot, about, **forms)


def _refuse_other_targets(output: Path, target: Sequence[str]) -> None:
    """Check that an earlier export left no folder in the output that this one does not replace.

    Raises:
        ValueError: If it did.
    """
    if kept := [name for name in TARGETS if name not in target and (output / name).is_dir()]:
        raise ValueError(
            f"{output} has the folders {kept} of an earlier export, expected --target for each:"
            " they would keep the earlier policy. Name them, or another --output."
        )


def _write_compared(
    output: Path, tolerance: float, *arguments: Any, **forms: Any
) -> dict[str, Any]:
    """Write a bundle, see ``write_bundle``; publish it if it acts like the policy."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = write_bundle(Path(folder), *arguments, **forms)
        bundle["max_difference"] = differences = verify(Path(folder), [folder])
        passed = all(each <= tolerance for each in differences.values())  # false for NaN
        if passed:
            write_json(Path(folder, METADATA), bundle)
            _publish(Path(folder), output)
    return {**bundle, "output": output if passed else None}


def _can_simulate(checkpoint: Path, where: Mapping[str, Any]) -> bool:
    """Return whether there is a platform to simulate on; it says itself if it lacks the task."""
    platform = load_platform(where.get("platform_name") or platform_of(checkpoint))
    if platform.TASKS is None:  # rsl_rl alone
        return bool(where.get("task"))
    return importlib.util.find_spec(platform.PACKAGES[0]) is not None


def _simulated(
    checkpoint: Path, heads: Mapping[str, nn.Module], steps: int, seed: int, **where: Any
) -> Recorded:
    """Record one robot in the policy's task."""
    with started(checkpoint, num_envs=1, seed=seed, **where) as start:
        trajectory = golden.record(start, heads, steps, seed)
    source = f"one robot of {start.task}, noise included, seed {seed}"
    return Recorded(start.policy, trajectory, source)


def _drawn(
    saved: SavedPolicy, images: Images, heads: Mapping[str, nn.Module], steps: int, seed: int
) -> Recorded:
    """Build a policy without an environment, and draw its observations."""
    policy = build_policy(saved, images=images)
    names = [name for name in groups_of(policy) if name in policy.obs_groups]
    shapes = {**saved.shapes, **images}
    groups = split_into_groups(names, torch.zeros(1, policy.obs_dim)).to_dict()
    for name in groups_of(policy):
        if name in shapes:
            dtype = saved.dtypes.get(name, torch.float32)
            groups[name] = torch.zeros(1, *shapes[name], dtype=dtype)
    trajectory = golden.draw(policy, heads, groups, steps, seed)
    seen = saved.config["obs_groups"][saved.part]
    knows_widths = len(seen) == 1 or set(seen) <= set(saved.shapes)
    source = "drawn as the policy's normaliser has seen observations"
    return Recorded(policy, trajectory, source, knows_widths)


def _publish(folder: Path, output: Path) -> None:
    """Copy the files of one folder into another, each atomically, ``policy.json`` last."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for file in sorted(files, key=lambda file: file.name == METADATA):
        with complete(output / file.relative_to(folder)) as unfinished:
            shutil.copyfile(file, unfinished)
