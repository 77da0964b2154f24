#!/usr/bin/env python
"""Evaluate a checkpoint on fresh episodes of its task, without exploration noise.

All environments start together and each counts for exactly its first full episode, so short
episodes are not counted more often than long ones. The same seed gives every policy the same
robots and the same starts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _intervals import CONFIDENCE, confidence_interval
from _isaaclab import MANIFEST, run_manifest
from _platform import PLATFORMS, load_platform
from _policy import agent_config, images_of, load_policy
from _preset import DEMO, load_preset
from _stages import write_json
from rsl_rl.models import MLPModel
from tensordict import TensorDict

SECONDS_BETWEEN_REPORTS = 2.0

Positions = dict[str, list[float]]


def main() -> None:
    """Evaluate and write a JSON file."""
    args = parse_args()
    platform = load_platform(args.platform)
    with platform.simulated_env(
        args.task,
        num_envs=args.episodes,
        seed=args.seed,
        device=args.device,
        clip_actions=agent_config(args.checkpoint).get("clip_actions"),
        overrides=args.overrides,
    ) as env:
        images = images_of(env.get_observations())
        policy = load_policy(args.checkpoint, args.device, images=images)
        read = platform.joint_reader(env, args.recorded_envs)
        # Building a policy draws random numbers; seeding again gives all policies the same starts.
        env.seed(args.seed)
        obs, _ = env.reset()
        returns, lengths, positions = run_first_episodes(env, policy, obs, read)
        step_seconds = env.unwrapped.step_dt
    result = summarise(returns, lengths, step_seconds)
    result |= {"checkpoint": args.checkpoint.name, "task": args.task, "seed": args.seed}
    result["recorded"] = recorded(positions, lengths[: args.recorded_envs])
    write_json(args.output, result)
    low, high = result["confidence_interval"]
    print(f"mean return {result['mean_return']:.3f}, 95 % confidence {low:.3f} to {high:.3f}")


def parse_args() -> argparse.Namespace:
    """Read the command line; the demo's preset gives the defaults."""
    preset = load_preset(DEMO)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="model_<iteration>.pt")
    parser.add_argument("--output", type=Path, default=Path("evaluation.json"))
    parser.add_argument("--platform", choices=PLATFORMS, default=preset.platform)
    parser.add_argument(
        "--task", help="registered id; by default what Isaac Lab noted beside the checkpoint"
    )
    parser.add_argument(
        "--overrides",
        nargs="+",
        default=[],
        help="of the task, as in training: presets=depth renderer=newton_renderer",
    )
    parser.add_argument("--episodes", type=int, default=preset.evaluation.episodes)
    parser.add_argument("--seed", type=int, default=preset.evaluation.seed)
    parser.add_argument("--recorded-envs", type=int, default=preset.evaluation.recorded_envs)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    args = parser.parse_args()
    manifest = run_manifest(args.checkpoint)
    if args.task is None and manifest is None:
        parser.error(
            f"--task is missing, and {args.checkpoint.parent / MANIFEST} too, which Isaac Lab"
            " writes: name the task the policy was trained on"
        )
    args.task = args.task or manifest["task"]
    return args


@torch.inference_mode()
def run_first_episodes(
    env: Any,
    policy: MLPModel,
    obs: TensorDict,
    read_positions: Callable[[], Positions],
) -> tuple[torch.Tensor, torch.Tensor, list[Positions]]:
    """Step all environments until each has finished its first episode.

    An environment that is done goes on with a second episode, which counts for nothing.

    Args:
        env: Environment in rsl_rl's form, just reset.
        policy: Policy whose memory is cleared where an episode ends.
        obs: Observations after the reset, batch size (N,).
        read_positions: Reads what to record before each step.

    Returns:
        Returns, shape (N,); episode lengths in steps, shape (N,), int64; and the readings.
    """
    policy.reset()
    running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    returns = torch.zeros(env.num_envs, device=env.device)
    lengths = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
    positions, reported = [], time.monotonic()
    while running.any():
        positions.append(read_positions())
        obs, rewards, dones, _ = env.step(policy(obs))
        policy.reset(dones)
        returns += torch.where(running, rewards, 0.0)
        lengths += running
        running &= dones == 0
        if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            print(f"[progress] {len(positions)}/{env.max_episode_length}", flush=True)
    return returns.cpu(), lengths.cpu(), positions


def summarise(returns: torch.Tensor, lengths: torch.Tensor, step_seconds: float) -> dict[str, Any]:
    """Describe episodes.

    Args:
        returns: Sum of rewards of each episode. Shape: (N,).
        lengths: Steps of each episode. Shape: (N,).
        step_seconds: Duration of a step.

    Returns:
        JSON values: the episodes, their mean return with its interval, their mean length.
    """
    values = returns.double().tolist()
    return {
        "episodes": len(values),
        "mean_return": sum(values) / len(values),
        "confidence_level": CONFIDENCE,
        "confidence_interval": list(confidence_interval(values)),
        "mean_length": lengths.double().mean().item(),
        "step_seconds": step_seconds,
        "returns": values,
        "lengths": lengths.tolist(),
    }


def recorded(positions: list[Positions], lengths: torch.Tensor) -> list[Positions]:
    """Cut the readings of each recorded environment at the end of its first episode.

    Args:
        positions: Readings by step, then by joint: one value per recorded environment.
        lengths: Steps of the recorded environments' first episodes. Shape: (E,).

    Returns:
        Per environment, positions over time by joint name.
    """
    return [
        {name: [step[name][env] for step in positions[:length]] for name in positions[0]}
        for env, length in enumerate(lengths.tolist())
    ]


if __name__ == "__main__":
    main()
