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
from rsl_tbptt.tools.robot import golden
from rsl_tbptt.tools.robot.bundle import Recorded, write_bundle
from rsl_tbptt.tools.robot.targets import TARGETS
from rsl_tbptt.tools.robot.verify import verify
from rsl_tbptt.tools.run import Run
from rsl_tbptt.tools.simulate.evaluate import started
from rsl_tbptt.tools.simulate.heads import saved_heads
from rsl_tbptt.tools.simulate.policies import (
    Images,
    build_policy,
    check_images,
    groups_of,
    split_into_groups,
)

MARK = b'"state_names"'
"""Bytes in the ``policy.json`` of every bundle."""


def export(
    run: Run,
    output: Path | None = None,
    *,
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
        run: The policy.
        output: New folder, or that of an earlier export, whose files are replaced. None means a new
            ``exported/model_<iteration>`` next to the checkpoint.
        images: Sizes of the image groups, which a checkpoint of rsl_rl alone does not have.
        single_input: Let ONNX take one ``obs`` of all groups joined.
        target: Names in :data:`rsl_tbptt.tools.robot.targets.TARGETS`; each gets a folder.
        steps: Length of the golden trajectory, at least 2.
        tolerance: Largest difference of an action, or of a head's prediction, that passes.
        seed: Seed of the trajectory.
        drawn: Draw its observations instead of simulating the policy's task. They are also drawn
            if the platform is not installed, and for rsl_rl alone without ``task``.
        where: ``task``, ``overrides`` and ``device`` of the simulation; see
            :func:`rsl_tbptt.tools.simulate.evaluate.started`.

    Returns:
        The content of ``policy.json``, and ``output``: the folder, or None if a difference is too
        large.

    Raises:
        ValueError: If the policy does not fit its config, its task is unknown to its platform,
            ``steps`` is below 2, nothing can be written to ``output``, or it has targets of an
            earlier export that ``target`` does not name.
    """
    if steps < 2:
        raise ValueError(f"steps is {steps}, expected at least 2: one step shows no memory.")
    check_images(run, images or {})
    heads = saved_heads(run.auxiliary)
    output = _folder(run, output, target)
    if drawn or not _can_simulate(run, where.get("task")):
        recorded = _drawn(run, images or {}, heads, steps, seed)
    else:
        with started(run, num_envs=1, seed=seed, **where) as start:
            source = f"one robot of {start.task}, noise included, seed {seed}"
            recorded = Recorded(start.policy, golden.record(start, heads, steps, seed), source)
    about = {"checkpoint": run.checkpoint.name, "iteration": run.iteration}
    forms = {"single_input": single_input, "targets": target}
    with tempfile.TemporaryDirectory() as name:
        bundle = write_bundle(folder := Path(name), recorded, heads, run.robot, about, **forms)
        bundle["max_difference"] = differences = verify(folder, [folder])
        passed = all(each <= tolerance for each in differences.values())  # false for NaN
        if passed:
            write_json(folder / METADATA, bundle)
            _publish(folder, output)
    return {**bundle, "output": output if passed else None}


def _folder(run: Run, output: Path | None, target: Sequence[str]) -> Path:
    """Return the folder to write.

    Raises:
        ValueError: If it cannot be written or would keep folders of an earlier export.
    """
    # Not in exported/ itself: Isaac Lab's play writes there and would replace the compared files.
    name = run.checkpoint.stem.replace(".", "_")  # output_path takes a name with a dot for a file
    output = output_path(output, run.checkpoint.parent / "exported" / name, MARK, METADATA)
    if kept := [name for name in TARGETS if name not in target and (output / name).is_dir()]:
        raise ValueError(
            f"{output} has the folders {kept} of an earlier export, expected --target for each:"
            " they would keep the earlier policy. Name them, or another --output."
        )
    return output


def _can_simulate(run: Run, task: str | None) -> bool:
    """Return whether there is a platform to simulate on; it says itself if it lacks the task."""
    if run.platform.TASKS is None:  # rsl_rl alone
        return bool(task)
    return importlib.util.find_spec(run.platform.PACKAGES[0]) is not None


def _drawn(
    run: Run, images: Images, heads: Mapping[str, nn.Module], steps: int, seed: int
) -> Recorded:
    """Build a policy without an environment, and draw its observations."""
    policy = build_policy(run, images=images)
    names = [name for name in groups_of(policy) if name in policy.obs_groups]
    shapes = {**run.shapes, **images}
    groups = split_into_groups(names, torch.zeros(1, policy.obs_dim)).to_dict()
    for name in groups_of(policy):
        if name in shapes:
            dtype = run.dtypes.get(name, torch.float32)
            groups[name] = torch.zeros(1, *shapes[name], dtype=dtype)
    trajectory = golden.draw(policy, heads, groups, steps, seed)
    knows_widths = len(run.groups) == 1 or {*run.groups} <= {*run.shapes}
    source = "drawn as the policy's normaliser has seen observations"
    return Recorded(policy, trajectory, source, knows_widths)


def _publish(folder: Path, output: Path) -> None:
    """Copy the files of one folder into another, each atomically, ``policy.json`` last."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for file in sorted(files, key=lambda file: file.name == METADATA):
        with complete(output / file.relative_to(folder)) as unfinished:
            shutil.copyfile(file, unfinished)
