#!/usr/bin/env python
"""Export a checkpoint's policy to TorchScript and ONNX, and compare both with the trained policy.

A recurrent policy keeps its state: the TorchScript file inside (call ``reset()`` where an episode
starts), the ONNX file as inputs and outputs (pass zeros where an episode starts). Images are the
second argument of the TorchScript file, a list, and inputs of the ONNX file by their groups' names.
"""

from __future__ import annotations

import argparse
import re
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from _policy import load_policy, split_into_groups
from _preset import DEMO, load_preset
from _stages import write_json
from rsl_rl.models import MLPModel

OPSET = 18
"""The operator set that rsl_rl exports with."""

OBS = "obs"
Obs = dict[str, torch.Tensor]
"""Inputs by their names in ONNX, one robot: what a policy joins under ``OBS``, shape (T, 1, D), and
each group of images by its own name, (T, 1, C, H, W)."""


def main() -> None:
    """Export, compare, write the result.

    Raises:
        SystemExit: If an export differs from the trained policy.
    """
    args = parse_args()
    images = dict(args.image) if args.image else None
    policy = load_policy(args.checkpoint, agent=args.agent, images=images)
    torchscript, onnx = args.output / "policy.pt", args.output / "policy.onnx"
    # Deprecated in torch, and written as long as torch can: software on robots reads it.
    warnings.filterwarnings("ignore", message=".torch.jit")
    exports = {"onnx": (run_onnx, onnx)}
    if hasattr(torch.jit, "script"):
        export_torchscript(policy, torchscript)
        exports["torchscript"] = (run_torchscript, torchscript)
    else:
        print(f"torchscript: not written, torch {torch.__version__} has given it up")
    export_onnx(policy, onnx)
    obs, episode_starts = make_sequence(policy, args.parity_steps, args.seed)
    expected = run_policy(policy, obs, episode_starts)
    differences = {
        name: max_difference(run(path, obs, episode_starts), expected)
        for name, (run, path) in exports.items()
    }
    write_json(
        args.output / "parity.json",
        {
            "checkpoint": args.checkpoint.name,
            "steps": args.parity_steps,
            "tolerance": args.tolerance,
            "max_difference": differences,
        },
    )
    for name, difference in differences.items():
        print(f"{name}: largest difference of an action {difference:.1e}")
        if not difference <= args.tolerance:
            raise SystemExit(
                f"{name} differs by {difference:.1e}, expected at most {args.tolerance:.1e}."
            )


def parse_args() -> argparse.Namespace:
    """Read the command line; the demo's preset gives the defaults."""
    preset = load_preset(DEMO).export
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="model_<iteration>.pt")
    parser.add_argument(
        "--agent",
        type=Path,
        help="YAML of the training's config, where no params/agent.yaml lies beside the checkpoint"
        " (rsl_rl alone); what the parameters show may be missing: 'actor: {activation: elu}'",
    )
    parser.add_argument(
        "--image",
        type=image_size,
        action="append",
        metavar="GROUP=CxHxW",
        help="size of the images that a CNN trained by rsl_rl alone sees; one for each group",
    )
    parser.add_argument("--output", type=Path, default=Path("exported"), help="folder")
    parser.add_argument("--parity-steps", type=int, default=preset.parity_steps)
    parser.add_argument("--tolerance", type=float, default=preset.tolerance)
    parser.add_argument("--seed", type=int, default=preset.seed, help="of the observations")
    return parser.parse_args()


def image_size(argument: str) -> tuple[str, tuple[int, ...]]:
    """Read ``GROUP=CxHxW``.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    group, _, size = argument.rpartition("=")
    if not (group and re.fullmatch(r"\d+x\d+x\d+", size)):
        raise argparse.ArgumentTypeError(f"{argument!r}, expected for example camera=3x64x64.")
    return group, tuple(map(int, size.split("x")))


def export_torchscript(policy: MLPModel, path: Path) -> None:
    """Write a policy as TorchScript for one robot, its state inside.

    Args:
        policy: The policy.
        path: The file; complete or as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name("unfinished.pt")
    torch.jit.script(policy.as_jit().to("cpu").eval()).save(str(unfinished))
    unfinished.replace(path)


def export_onnx(policy: MLPModel, path: Path) -> None:
    """Write a policy as ONNX for one robot, its state as inputs and outputs.

    Args:
        policy: The policy.
        path: The file; complete or as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name("unfinished.onnx")
    model = policy.as_onnx(verbose=False).to("cpu").eval()
    with warnings.catch_warnings():
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
    unfinished.replace(path)


def make_sequence(policy: MLPModel, num_steps: int, seed: int) -> tuple[Obs, list[bool]]:
    """Draw observations for a comparison, with an episode start at step 0 and in the middle.

    Args:
        policy: The policy that will read them.
        num_steps: Number of steps T.
        seed: Seed of the draw.

    Returns:
        Standard normal observations, and whether each step starts an episode.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {OBS: (policy.obs_dim,)}
    for index, name in enumerate(getattr(policy, "obs_groups_2d", ())):
        shapes[name] = (policy.obs_channels_2d[index], *policy.obs_dims_2d[index])  # type: ignore[index,misc]
    obs = {
        name: torch.randn(num_steps, 1, *shape, generator=generator)
        for name, shape in shapes.items()
    }
    return obs, [step in {0, num_steps // 2} for step in range(num_steps)]


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
        groups = split_into_groups(policy.obs_groups, obs[OBS][step])
        groups.update({name: images[step] for name, images in obs.items() if name != OBS})
        actions.append(policy(groups))
    return torch.stack(actions)


@torch.inference_mode()
def run_torchscript(path: Path, obs: Obs, episode_starts: list[bool]) -> torch.Tensor:
    """Run an exported TorchScript file over a sequence; see :func:`run_policy`."""
    module = torch.jit.load(str(path))
    actions = []
    for step, starts in enumerate(episode_starts):
        if starts:
            module.reset()
        images = [group[step] for name, group in obs.items() if name != OBS]
        actions.append(module(obs[OBS][step], *([images] if images else [])))
    return torch.stack(actions)


def run_onnx(path: Path, obs: Obs, episode_starts: list[bool]) -> torch.Tensor:
    """Run an exported ONNX file over a sequence; see :func:`run_policy`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {entry.name: entry.shape for entry in session.get_inputs()}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in inputs.items() if name not in obs}
    actions, state = [], zeros
    for step, starts in enumerate(episode_starts):
        state = zeros if starts else state
        seen = {name: group[step].numpy() for name, group in obs.items() if name in inputs}
        action, *new_state = session.run(None, {**seen, **state})
        state = dict(zip(zeros, new_state, strict=True))
        actions.append(torch.from_numpy(np.asarray(action)))
    return torch.stack(actions)


def max_difference(actions: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest absolute difference of two sequences of actions."""
    return (actions - expected).abs().max().item()


if __name__ == "__main__":
    main()
