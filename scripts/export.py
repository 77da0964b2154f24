#!/usr/bin/env python
"""Export a checkpoint's policy to TorchScript and ONNX, and compare both with the trained policy.

A recurrent policy keeps its state: the TorchScript file inside (call ``reset()`` where an episode
starts), the ONNX file as inputs and outputs (pass zeros where an episode starts).
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    """Export, compare, write the result.

    Raises:
        SystemExit: If an export differs from the trained policy.
    """
    args = parse_args()
    policy = load_policy(args.checkpoint, agent=args.agent)
    torchscript, onnx = args.output / "policy.pt", args.output / "policy.onnx"
    export_torchscript(policy, torchscript)
    export_onnx(policy, onnx)
    obs, episode_starts = make_sequence(policy, args.parity_steps, args.seed)
    expected = run_policy(policy, obs, episode_starts)
    differences = {
        "torchscript": max_difference(run_torchscript(torchscript, obs, episode_starts), expected),
        "onnx": max_difference(run_onnx(onnx, obs, episode_starts), expected),
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
    parser.add_argument("--output", type=Path, default=Path("exported"), help="folder")
    parser.add_argument("--parity-steps", type=int, default=preset.parity_steps)
    parser.add_argument("--tolerance", type=float, default=preset.tolerance)
    parser.add_argument("--seed", type=int, default=preset.seed, help="of the observations")
    return parser.parse_args()


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


def make_sequence(policy: MLPModel, num_steps: int, seed: int) -> tuple[torch.Tensor, list[bool]]:
    """Draw observations for a comparison, with an episode start at step 0 and in the middle.

    Args:
        policy: The policy that will read them.
        num_steps: Number of steps T.
        seed: Seed of the draw.

    Returns:
        Standard normal observations, shape (T, 1, D), and whether each step starts an episode.
    """
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(num_steps, 1, policy.obs_dim, generator=generator)
    return obs, [step in {0, num_steps // 2} for step in range(num_steps)]


@torch.inference_mode()
def run_policy(policy: MLPModel, obs: torch.Tensor, episode_starts: list[bool]) -> torch.Tensor:
    """Run the trained policy over a sequence.

    Args:
        policy: The policy.
        obs: Observations. Shape: (T, 1, D).
        episode_starts: Whether the memory is cleared before each of the T steps.

    Returns:
        Actions. Shape: (T, 1, A).
    """
    actions = []
    for step_obs, starts in zip(obs, episode_starts, strict=True):
        if starts:
            policy.reset()
        actions.append(policy(split_into_groups(policy.obs_groups, step_obs)))
    return torch.stack(actions)


@torch.inference_mode()
def run_torchscript(path: Path, obs: torch.Tensor, episode_starts: list[bool]) -> torch.Tensor:
    """Run an exported TorchScript file over a sequence; see :func:`run_policy`."""
    module = torch.jit.load(str(path))
    actions = []
    for step_obs, starts in zip(obs, episode_starts, strict=True):
        if starts:
            module.reset()
        actions.append(module(step_obs))
    return torch.stack(actions)


def run_onnx(path: Path, obs: torch.Tensor, episode_starts: list[bool]) -> torch.Tensor:
    """Run an exported ONNX file over a sequence; see :func:`run_policy`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    obs_input, *state_inputs = session.get_inputs()
    zeros = {state.name: np.zeros(state.shape, np.float32) for state in state_inputs}
    actions, state = [], zeros
    for step_obs, starts in zip(obs, episode_starts, strict=True):
        state = zeros if starts else state
        action, *new_state = session.run(None, {obs_input.name: step_obs.numpy(), **state})
        state = dict(zip(zeros, new_state, strict=True))
        actions.append(torch.from_numpy(np.asarray(action)))
    return torch.stack(actions)


def max_difference(actions: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest absolute difference of two sequences of actions."""
    return (actions - expected).abs().max().item()


if __name__ == "__main__":
    main()
