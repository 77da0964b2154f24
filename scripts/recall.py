#!/usr/bin/env python
"""Train recurrent and memoryless PPO on the recall task and print who remembers, as Markdown.

A cue has to be named `--recall-length` steps after it was shown. The answer is worth 1, guessing 0.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner

from rsl_tbptt_tasks.memory import RecallEnv

NUM_STEPS = 32


def main() -> None:
    """Train all policies and print a table."""
    args = parse_args()
    policies: list[tuple[str, int | None]] = [
        *(("RNNModel", length) for length in args.gradient_lengths),
        ("MLPModel", None),
    ]
    print(f"| policy | `gradient_length` | {' | '.join(f'seed {seed}' for seed in args.seeds)} |")
    print("|---" * (2 + len(args.seeds)) + "|")
    for model, gradient_length in policies:
        rewards = [
            reward_per_answer(model, gradient_length, args.recall_length, args.iterations, seed)
            for seed in args.seeds
        ]
        name = "MLP" if gradient_length is None else "GRU"
        cells = [name, str(gradient_length or "-"), *(f"{reward:.2f}" for reward in rewards)]
        print(f"| {' | '.join(cells)} |", flush=True)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recall-length", type=int, default=16)
    parser.add_argument("--gradient-lengths", type=int, nargs="+", default=[4, 17])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    return parser.parse_args()


def reward_per_answer(
    model: str, gradient_length: int | None, recall_length: int, iterations: int, seed: int
) -> float:
    """Train one policy; return its mean reward per answer without action noise."""
    torch.manual_seed(seed)
    env = RecallEnv(num_envs=128, recall_length=recall_length, seed=seed)
    with contextlib.redirect_stdout(io.StringIO()):  # the runner's log
        runner = OnPolicyRunner(env, train_cfg(model, gradient_length), log_dir=None)
        runner.learn(iterations)
    policy, obs = runner.get_inference_policy(), env.get_observations()
    total = torch.zeros(2)
    with torch.inference_mode():
        for _ in range(10 * (recall_length + 1)):
            obs, rewards, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            total += torch.stack((rewards.sum(), dones.sum()))
    return (total[0] / total[1]).item()


def train_cfg(model: str, gradient_length: int | None) -> dict[str, Any]:
    """Return the runner's config: actor and critic of one kind, both on the cue alone."""
    memory = {"rnn_type": "gru", "rnn_hidden_dim": 32} if model == "RNNModel" else {}
    shared = {"class_name": model, "hidden_dims": [32], **memory}
    noise = {"class_name": "GaussianDistribution", "init_std": 0.5}
    return {
        "num_steps_per_env": NUM_STEPS,
        "save_interval": 1000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttPPO",
            "gradient_length": gradient_length,
            "learning_rate": 2e-3,
            "entropy_coef": 0.0,
        },
        "actor": {**shared, "distribution_cfg": noise},
        "critic": dict(shared),
    }


if __name__ == "__main__":
    main()
