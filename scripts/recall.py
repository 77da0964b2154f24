#!/usr/bin/env python
"""Train PPO with and without memory on the recall task and print the rewards as Markdown.

`--cells` names the recurrent cells to compare.

The policy has to name a cue `--recall-length` steps after it was shown. The answer is worth 1,
guessing 0.
"""

import argparse
import contextlib
import copy
import io
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from tabulate import tabulate
from tensordict import TensorDict

from rsl_tbptt.core.scan import CELLS
from rsl_tbptt_tasks.memory import RecallEnv

CFG = Path(__file__).with_name("recall.yaml")
HIDDEN_SIZE = 32


def main() -> None:
    """Train all policies and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", default=["gru"], choices=[c.lower() for c in CELLS])
    parser.add_argument("--recall-length", type=int, default=16)
    parser.add_argument("--gradient-lengths", type=int, nargs="+", default=[4, 17])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    rows = []
    for cell, length in (*product(args.cells, args.gradient_lengths), (None, None)):
        rewards = [
            train(cell, length, args.recall_length, args.iterations, seed) for seed in args.seeds
        ]
        name = cell.upper() if cell else "MLP"
        rows.append((name, length or "-", *(f"{reward:.2f}" for reward in rewards)))
    heads = ("policy", "`gradient_length`", *(f"seed {seed}" for seed in args.seeds))
    print(tabulate(rows, heads, tablefmt="github", disable_numparse=True))


def train(
    cell: str | None, gradient_length: int | None, recall_length: int, iterations: int, seed: int
) -> float:
    """Train one policy; return its mean reward per answer without action noise."""
    torch.manual_seed(seed)
    env = RecallEnv(num_envs=128, recall_length=recall_length, seed=seed)
    with contextlib.redirect_stdout(io.StringIO()):  # the runner's log
        runner = make_runner(env, train_cfg(cell, gradient_length))
        runner.learn(iterations)
    policy, num_steps = runner.get_inference_policy(), 10 * (recall_length + 1)
    return reward_per_answer(policy, env, env.get_observations(), num_steps)


def make_runner(env: Any, cfg: dict[str, Any]) -> Any:
    """Make rsl_rl's runner for a config; its teacher needs no checkpoint."""
    make = DistillationRunner if "student" in cfg else OnPolicyRunner
    runner: Any = make(env, copy.deepcopy(cfg), log_dir=None)
    runner.alg.teacher_loaded = True
    return runner


def reward_per_answer(policy: Any, env: Any, obs: TensorDict, num_steps: int) -> float:
    """Return a policy's mean reward per answer, which ends an episode, from ``obs`` on."""
    total = torch.zeros(2)
    with torch.inference_mode():
        for _ in range(num_steps):
            obs, rewards, dones, _ = env.step(policy(obs))
            policy.reset(dones)
            total += torch.stack((rewards.sum(), dones.sum()))
    return (total[0] / total[1]).item()


def train_cfg(cell: str | None, gradient_length: int | None) -> dict[str, Any]:
    """Return the runner's config: actor and critic are of one kind and see only the cue."""
    cfg = yaml.safe_load(CFG.read_text(encoding="utf-8"))
    cfg["algorithm"]["gradient_length"] = gradient_length
    for role in ("actor", "critic"):
        cfg[role]["class_name"] = "rsl_tbptt.models:RecurrentModel" if cell else "MLPModel"
        if cell:
            cfg[role] |= {"rnn_type": cell, "rnn_hidden_dim": HIDDEN_SIZE}
    return cfg


if __name__ == "__main__":
    main()
