#!/usr/bin/env python
"""Vary one setting at a time on the recall task and print how long each takes, as Markdown.

A policy is done when its mean reward per answer, without action noise, is at least 0.9: answers are
worth 1, guessing 0. This is checked after every second iteration. what_matters.yaml lists the
settings.
"""

import argparse
import contextlib
import copy
import io
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.tools.simulate.evaluate import mean_and_interval
from rsl_tbptt_tasks.memory import RecallEnv
from scripts.recall import make_runner, reward_per_answer

CFG = Path(__file__).with_name("what_matters.yaml")
HEADS = ("setting", "done", "iterations", "95 % interval", "reward at the end", "95 % interval")


class PerfectTeacher(nn.Module):
    """Gives the right answers, behind rsl_rl's interface of a model without memory."""

    is_recurrent = False

    def __init__(self, *_unused: object) -> None:
        """Accept and ignore the arguments that rsl_rl gives every model."""
        super().__init__()

    def forward(self, obs: TensorDict) -> torch.Tensor:
        """Return the answers, shape (N, 1)."""
        return obs["privileged"][:, 2:]

    def reset(self, dones: object = None, hidden_state: object = None) -> None:
        """Do nothing: there is no state."""

    def get_hidden_state(self) -> None:
        """Return None: there is no state."""


class ScaledRecall(RecallEnv):
    """The recall task with observations in another unit."""

    def __init__(self, obs_scale: float, **kwargs: Any) -> None:
        """Set up the episodes; ``obs_scale`` multiplies the policy's observations."""
        self.obs_scale = obs_scale
        super().__init__(**kwargs)

    def get_observations(self) -> TensorDict:
        """Return the observations with "policy" scaled."""
        obs = super().get_observations()
        obs["policy"] = obs["policy"] * self.obs_scale
        return obs


def main() -> None:
    """Train every row with every seed and print each row when it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=24, help="at most, per training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23, 24, 25])
    parser.add_argument("--rows", default="", help="only rows with this in their name")
    args = parser.parse_args()
    cfg = yaml.safe_load(CFG.read_text(encoding="utf-8"))
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|")
    for name, values in cfg["rows"].items():
        if args.rows in name:
            merged = with_values(cfg["bases"][name.split(", ")[0]], values)
            results = [train(merged, cfg["recall_length"], args.iterations, s) for s in args.seeds]
            print(row(name, results), flush=True)
    print(f"\n{time.process_time():.0f} s of processor time")


def with_values(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return a config in which values, by their dotted paths, replace those of the base."""
    cfg = copy.deepcopy(base)
    for path, value in values.items():
        *sections, key = path.split(".")
        section = cfg
        for name in sections:
            section = section[name]
        section[key] = value
    return cfg


def train(
    cfg: dict[str, Any], recall_length: int, iterations: int, seed: int
) -> tuple[int | None, float]:
    """Train a policy; return the iterations until done, None if never, and the last reward."""
    cfg = copy.deepcopy(cfg)
    biased = cfg.pop("forget_gate_bias", False)
    env_cfg = {"recall_length": recall_length, "obs_scale": cfg.pop("obs_scale", 1.0)}
    torch.manual_seed(seed)
    env = ScaledRecall(num_envs=cfg.pop("num_envs", 128), seed=seed, **env_cfg)
    reward = 0.0
    with contextlib.redirect_stdout(io.StringIO()):  # the runner's log
        runner = make_runner(env, cfg)
        for role in ("student", "actor", "critic"):
            if biased and role in cfg:
                bias_forget_gates(getattr(runner.alg, role))
        for done in range(2, iterations + 1, 2):
            runner.learn(2)
            reward = fresh_reward(runner.get_inference_policy(), env_cfg)
            if reward >= 0.9:
                return done, reward
    return None, reward


def bias_forget_gates(model: nn.Module) -> None:
    """Set the bias of a model's forget gates to 1, so that it keeps its state initially."""
    for layer in model.modules():
        if isinstance(layer, nn.LSTM):
            size = layer.hidden_size
            for name, parameter in layer.named_parameters():
                if name.startswith("bias_ih"):
                    parameter.data[size : 2 * size] = 1.0  # torch's order: input, forget, ...


def fresh_reward(policy: Any, env_cfg: dict[str, Any]) -> float:
    """Return a policy's mean reward per answer on fresh episodes; restore its memory afterwards."""
    env = ScaledRecall(num_envs=128, seed=1000, **env_cfg)
    obs, state = env.reset()[0], policy.get_hidden_state()
    policy.reset()
    reward = reward_per_answer(policy, env, obs, 2 * (env.recall_length + 1))
    policy.reset(hidden_state=state)
    return reward


def row(name: str, results: list[tuple[int | None, float]]) -> str:
    """Return a row of the table; iterations have no mean if a seed was never done."""
    iterations = [float(done) for done, _ in results if done is not None]
    done = f"{len(iterations)} of {len(results)}"
    speed = interval(iterations, 1) if len(iterations) == len(results) else ("-", "-")
    cells = (name, done, *speed, *interval([reward for _, reward in results], 2))
    return "| " + " | ".join(cells) + " |"


def interval(values: list[float], digits: int) -> tuple[str, str]:
    """Return mean and 95 % interval of Student's t over seeds."""
    known = mean_and_interval(values) if len(values) > 1 else 3 * tuple(values)
    mean, low, high = (f"{number:.{digits}f}" for number in known)
    return mean, f"{low} to {high}"


if __name__ == "__main__":
    main()
