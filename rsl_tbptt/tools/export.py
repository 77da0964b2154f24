"""Export a checkpoint's policy to TorchScript and ONNX, and compare both with the trained policy.

A recurrent policy keeps its state: the TorchScript file inside (call ``reset()`` where an episode
starts), the ONNX file as inputs and outputs (pass zeros where an episode starts). Images are the
second argument of the TorchScript file, a list, and inputs of the ONNX file by their groups' names.
Of a ``RecurrentModel`` both take every group by its name, the TorchScript file in a dictionary.
Auxiliary heads are further outputs of the ONNX file, behind the state.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from rsl_tbptt.algorithms.heads import saved_heads
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.files import complete, output_path, write_json
from rsl_tbptt.models import RecurrentModel
from rsl_tbptt.models.exports import OnnxModelWithHeads
from rsl_tbptt.tools.policies import (
    Images,
    build_policy,
    check_images,
    read_policy,
    recorded_latents,
    split_into_groups,
)

OPSET = 18
"""The operator set that rsl_rl exports with."""

OBS = "obs"
Obs = dict[str, torch.Tensor]
"""Inputs by their names in ONNX, one robot: what a policy of rsl_rl's joins under ``OBS``, shape
(T, 1, D), and each other group by its own name, images as (T, 1, C, H, W)."""


def export(
    checkpoint: Path,
    output: Path | None = None,
    *,
    agent: Path | None = None,
    trust: Sequence[str] = (),
    images: Images | None = None,
    parity_steps: int = 64,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> dict[str, Any]:
    """Export a checkpoint's policy and compare the exports with it.

    Files are written if the comparison passes; what there was before stays until then.

    Args:
        checkpoint: ``model_<iteration>.pt`` in a log folder.
        output: Folder whose ``policy.onnx``, ``policy.pt`` where torch still has TorchScript, and
            ``parity.json`` are replaced. None is a new ``exported/model_<iteration>`` beside it.
        agent: YAML file of the training's config where none lies next to the checkpoint.
        trust: Packages whose classes it may name; see :func:`rsl_tbptt.tools.policies.read_policy`.
        images: Sizes of image groups; see :func:`rsl_tbptt.tools.policies.load_policy`.
        parity_steps: Steps compared, at least 1; see :func:`make_sequence`.
        tolerance: Largest difference of an action, or of a head's prediction, that passes.
        seed: Seed of the observations compared on.

    Returns:
        The content of ``parity.json``: the largest difference of an action by export, that of each
        auxiliary head by its name, and whether all pass; and ``output``, the folder.

    Raises:
        FileNotFoundError: If the config next to the checkpoint is missing.
        ValueError: If the checkpoint cannot be read, holds no policy or another model's, nothing
            would be compared, or nothing can be written to ``output``.
    """
    if parity_steps < 1:
        raise ValueError(f"parity_steps is {parity_steps}, expected at least 1.")
    saved = read_policy(checkpoint, agent, trust)
    check_images(saved, images or {})
    policy, heads = build_policy(saved, images=images), saved_heads(saved.auxiliary)
    # Not the folder that Isaac Lab's play writes to, which would replace what was compared.
    output = output_path(output, checkpoint.parent / "exported" / checkpoint.stem)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_onnx(policy, folder / "policy.onnx", heads)
        if hasattr(torch.jit, "script"):
            export_torchscript(policy, folder / "policy.pt")
        parity = compare(policy, heads, folder, parity_steps, tolerance, seed)
        parity = {"checkpoint": checkpoint.name, **parity}
        if parity["passed"]:
            write_json(folder / "parity.json", parity)
            _publish(folder, output)
    return {**parity, "output": output}


def compare(
    policy: MLPModel,
    heads: Mapping[str, nn.Module],
    folder: Path,
    num_steps: int,
    tolerance: float,
    seed: int,
) -> dict[str, Any]:
    """Compare the exports in a folder with the policy; see :func:`export` for the arguments.

    Returns:
        JSON values: the largest difference by name, and whether all pass.
    """
    obs, episode_starts = make_sequence(policy, num_steps, seed)
    actions, *predictions = run_policy(policy, obs, episode_starts, heads)
    found, *found_predictions = run_onnx(folder / "policy.onnx", obs, episode_starts)
    differences = {"onnx": max_difference(found, actions)}
    if (folder / "policy.pt").exists():
        (found,) = run_torchscript(folder / "policy.pt", obs, episode_starts)
        differences["torchscript"] = max_difference(found, actions)
    for name, one, other in zip(heads, found_predictions, predictions, strict=True):
        differences[name] = max_difference(one, other)
    return {
        "steps": num_steps,
        "tolerance": tolerance,
        "max_difference": differences,
        # A difference that is no number does not pass.
        "passed": all(difference <= tolerance for difference in differences.values()),
    }


def _publish(folder: Path, output: Path) -> None:
    """Copy the files of one folder into another one, each whole; ``parity.json`` comes last."""
    for file in sorted(folder.iterdir(), key=lambda file: file.suffix == ".json"):
        with complete(output / file.name) as unfinished:
            shutil.copyfile(file, unfinished)


@contextmanager
def _torchscript() -> Iterator[None]:
    """Ignore that torch calls TorchScript deprecated: software on robots reads it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".torch.jit")
        yield


def export_torchscript(policy: MLPModel, path: Path) -> None:
    """Write a policy as TorchScript for one robot, its state inside.

    Args:
        policy: The policy.
        path: The file; complete or as before.
    """
    with complete(path) as unfinished, _torchscript():
        torch.jit.script(policy.as_jit().to("cpu").eval()).save(str(unfinished))


def export_onnx(policy: MLPModel, path: Path, heads: Mapping[str, nn.Module] | None = None) -> None:
    """Write a policy as ONNX for one robot, its state as inputs and outputs.

    Args:
        policy: The policy.
        path: The file; complete or as before.
        heads: Auxiliary heads by the names of their outputs, which stand behind the state.
    """
    model: Any = policy.as_onnx(verbose=False)
    if heads:
        model = OnnxModelWithHeads(model, heads)
    model = model.to("cpu").eval()
    with complete(path) as unfinished, warnings.catch_warnings():
        # Both come from within torch's exporter: flat views of the LSTM's weights, a pytree rename.
        warnings.filterwarnings("ignore", message="The tensor attributes? .*_flat_weights")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        torch.onnx.export(
            model,
            model.get_dummy_inputs(),
            str(unfinished),
            input_names=model.input_names,
            output_names=model.output_names,
            opset_version=OPSET,
            external_data=False,  # one file, whatever its size
            verbose=False,
        )


def make_sequence(policy: MLPModel, num_steps: int, seed: int) -> tuple[Obs, list[bool]]:
    """Draw observations for a comparison that a policy's memory depends on, of three episodes.

    Behind a normaliser that has seen others than these, a policy would say the same everywhere.

    Args:
        policy: The policy that will read them.
        num_steps: Number of steps T.
        seed: Seed of the draw.

    Returns:
        Observations, and whether each step starts an episode: the first, that in the middle, and
        that at three quarters. Normal ones have the mean and standard deviation that the normaliser
        has seen, images those of 0 and 1 behind ``image_scale``; bytes are uniform, other integers
        0 or 1.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes, obs = _input_shapes(policy), {}
    statistics = _seen_by_normalizer(policy, shapes)
    others = (0.0, 1.0 / getattr(policy, "image_scale", 1.0))
    dtypes = getattr(policy, "group_dtypes", {})
    for name, shape in shapes.items():
        dtype = dtypes.get(name, torch.float32)
        mean, std = statistics.get(name, others)
        values = mean + std * torch.randn(num_steps, 1, *shape, generator=generator)
        if not dtype.is_floating_point:
            high = 256 if dtype == torch.uint8 else 2
            values = torch.randint(high, values.shape, generator=generator)
        obs[name] = values.to(dtype)
    starts = {0, num_steps // 2, 3 * num_steps // 4}
    return obs, [step in starts for step in range(num_steps)]


def _seen_by_normalizer(
    policy: MLPModel, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[torch.Tensor, ...]]:
    """Return mean and standard deviation, (D,) each, of the groups that are normalised."""
    normalizer: Any = policy.obs_normalizer
    if not hasattr(normalizer, "mean"):
        return {}
    known = torch.stack([normalizer.mean, normalizer.std])
    widths = {name: shapes[name][-1] for name in shapes if name in (OBS, *policy.obs_groups)}
    groups = known.split([*widths.values()], dim=1)
    return {name: tuple(group) for name, group in zip(widths, groups, strict=True)}


@torch.inference_mode()
def run_policy(
    policy: MLPModel,
    obs: Obs,
    episode_starts: list[bool],
    heads: Mapping[str, nn.Module] | None = None,
) -> list[torch.Tensor]:
    """Run the trained policy over a sequence.

    Args:
        policy: The policy.
        obs: Observations of T steps.
        episode_starts: Whether the memory is cleared before each of the T steps.
        heads: Auxiliary heads by name.

    Returns:
        Actions, shape (T, 1, A), and the prediction of each head, shape (T, 1, D).
    """
    actions = []
    with recorded_latents(policy) as latents:
        for step, starts in enumerate(episode_starts):
            if starts:
                policy.reset()
            joined = [] if isinstance(policy, RecurrentModel) else policy.obs_groups
            groups = split_into_groups(joined, obs[OBS][step] if joined else torch.zeros(1, 0))
            groups.update({name: group[step] for name, group in obs.items()})
            actions.append(policy(groups))
    predictions = [head(torch.stack(latents)) for head in (heads or {}).values()]
    return [torch.stack(actions), *predictions]


def _input_shapes(policy: MLPModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a policy's observations for one robot by their names in ONNX."""
    if isinstance(policy, RecurrentModel):
        return {name: tuple(shape) for name, shape in policy.group_shapes.items()}
    images = [getattr(policy, f"obs_{what}_2d", ()) for what in ("groups", "channels", "dims")]
    sizes = {name: (channels, *size) for name, channels, size in zip(*images, strict=True)}
    return {OBS: (policy.obs_dim,), **sizes}


@torch.inference_mode()
def run_torchscript(path: Path, obs: Obs, episode_starts: list[bool]) -> list[torch.Tensor]:
    """Return the actions of an exported TorchScript file; see :func:`run_policy`."""
    with _torchscript():
        module = torch.jit.load(str(path))
    actions = []
    for step, starts in enumerate(episode_starts):
        if starts:
            module.reset()
        groups = {name: group[step] for name, group in obs.items()}
        joined = groups.pop(OBS, None)
        if joined is None:
            actions.append(module(groups))
        else:
            actions.append(module(joined, *([list(groups.values())] if groups else [])))
    return [torch.stack(actions)]


def run_onnx(path: Path, obs: Obs, episode_starts: list[bool]) -> list[torch.Tensor]:
    """Return actions and predictions of an exported ONNX file; see :func:`run_policy`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {entry.name: entry.shape for entry in session.get_inputs()}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in inputs.items() if name not in obs}
    steps, state = [], zeros
    for step, starts in enumerate(episode_starts):
        state = zeros if starts else state
        seen = {name: group[step].numpy() for name, group in obs.items() if name in inputs}
        action, *others = map(np.asarray, session.run(None, {**seen, **state}))
        state = dict(zip(zeros, others, strict=False))
        steps.append([action, *others[len(zeros) :]])
    return [torch.from_numpy(np.stack(each)) for each in zip(*steps, strict=True)]


def max_difference(actions: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest absolute difference of two sequences of actions, shape (T, 1, A)."""
    return (actions - expected).abs().max().item()
