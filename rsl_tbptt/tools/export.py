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
        output: Folder for ``policy.onnx``, ``policy.pt`` where torch still has TorchScript, and
            ``parity.json``, which are replaced there. None is a new one next to the checkpoint,
            ``exported/model_<iteration>``.
        agent: YAML file of the training's config where none lies next to the checkpoint.
        trust: Packages whose classes it may name; see :func:`rsl_tbptt.tools.policies.read_policy`.
        images: Sizes of the image groups that a CNN sees; see
            :func:`rsl_tbptt.tools.policies.load_policy`.
        parity_steps: Steps compared, at least 1; see :func:`make_sequence`.
        tolerance: Largest difference of an action, or of a head's prediction, that passes.
        seed: Seed of the observations compared on.

    Returns:
        The content of ``parity.json``: the largest difference of an action by export, that of each
        auxiliary head by its name, and whether all pass; and ``output``, the folder.

    Raises:
        FileNotFoundError: If the config next to the checkpoint is missing.
        ValueError: If the checkpoint is missing or cannot be read, holds no policy or another
            model's, nothing would be compared, or nothing can be written to ``output``.
    """
    if parity_steps < 1:
        raise ValueError(f"parity_steps is {parity_steps}, expected at least 1.")
    saved = read_policy(checkpoint, agent, trust)
    check_images(saved, images or {})
    policy, heads = build_policy(saved, images=images), saved_heads(saved.auxiliary)
    # Not the folder that Isaac Lab's play writes to, which would replace what was compared.
    output = output_path(output, checkpoint.parent / "exported" / checkpoint.stem)
    sequence = make_sequence(policy, parity_steps, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_onnx(policy, folder / "policy.onnx", heads)
        if hasattr(torch.jit, "script"):
            export_torchscript(policy, folder / "policy.pt")
        differences = _differences(policy, heads, folder, *sequence)
        parity = {
            "checkpoint": checkpoint.name,
            "steps": parity_steps,
            "tolerance": tolerance,
            "max_difference": differences,
            # A difference that is no number does not pass.
            "passed": all(difference <= tolerance for difference in differences.values()),
        }
        if parity["passed"]:
            for file in folder.iterdir():
                with complete(output / file.name) as unfinished:
                    shutil.copyfile(file, unfinished)
            write_json(output / "parity.json", parity)
    return {**parity, "output": output}


def _differences(
    policy: MLPModel,
    heads: Mapping[str, nn.Module],
    folder: Path,
    obs: Obs,
    episode_starts: list[bool],
) -> dict[str, float]:
    """Return the largest differences between the exports in a folder and the policy, by name."""
    expected = run_policy(policy, obs, episode_starts)
    predicted = run_heads(policy, heads, obs, episode_starts)
    actions, *predictions = run_onnx_outputs(folder / "policy.onnx", obs, episode_starts)
    differences = {"onnx": max_difference(actions, expected)}
    if (folder / "policy.pt").exists():
        actions = run_torchscript(folder / "policy.pt", obs, episode_starts)
        differences["torchscript"] = max_difference(actions, expected)
    for name, found in zip(heads, predictions, strict=True):
        differences[name] = max_difference(found, predicted[name])
    return differences


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
def run_policy(policy: MLPModel, obs: Obs, episode_starts: list[bool]) -> torch.Tensor:
    """Run the trained policy over a sequence.

    Args:
        policy: The policy.
        obs: Observations of T steps.
        episode_starts: Whether the memory is cleared before each of the T steps.

    Returns:
        Actions. Shape: (T, 1, A).
    """
    actions = []
    for step, starts in enumerate(episode_starts):
        if starts:
            policy.reset()
        joined = [] if isinstance(policy, RecurrentModel) else policy.obs_groups
        groups = split_into_groups(joined, obs[OBS][step] if joined else torch.zeros(1, 0))
        groups.update({name: group[step] for name, group in obs.items()})
        actions.append(policy(groups))
    return torch.stack(actions)


def run_heads(
    policy: MLPModel, heads: Mapping[str, nn.Module], obs: Obs, episode_starts: list[bool]
) -> dict[str, torch.Tensor]:
    """Return what heads of the trained policy predict, (T, 1, D) each; see :func:`run_policy`."""
    with recorded_latents(policy) as latents:
        run_policy(policy, obs, episode_starts)
    with torch.inference_mode():
        return {name: head(torch.stack(latents)) for name, head in heads.items()}


def _input_shapes(policy: MLPModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a policy's observations for one robot by their names in ONNX."""
    if isinstance(policy, RecurrentModel):
        return {name: tuple(shape) for name, shape in policy.group_shapes.items()}
    images = [getattr(policy, f"obs_{what}_2d", ()) for what in ("groups", "channels", "dims")]
    sizes = {name: (channels, *size) for name, channels, size in zip(*images, strict=True)}
    return {OBS: (policy.obs_dim,), **sizes}


@torch.inference_mode()
def run_torchscript(path: Path, obs: Obs, episode_starts: list[bool]) -> torch.Tensor:
    """Return the actions, (T, 1, A), of an exported TorchScript file; see :func:`run_policy`."""
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
    return torch.stack(actions)


def run_onnx(path: Path, obs: Obs, episode_starts: list[bool]) -> torch.Tensor:
    """Return the actions, (T, 1, A), of an exported ONNX file; see :func:`run_policy`."""
    return run_onnx_outputs(path, obs, episode_starts)[0]


def run_onnx_outputs(path: Path, obs: Obs, episode_starts: list[bool]) -> list[torch.Tensor]:
    """Return actions, (T, 1, A), and predictions of auxiliary heads, (T, 1, D), of an ONNX file."""
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
