#!/usr/bin/env python
"""Measure the memory of policies whose memory is known, and print a table as Markdown.

Students learn to name a cue some steps after it was shown, and are measured as `rsl-tbptt memory`
does. Others cannot remember, or have a fault that is planted after training.
"""

import argparse
import contextlib
import io
import math
import time
import warnings
from typing import Any

import torch
from rsl_rl.runners import DistillationRunner
from tensordict import TensorDict

from rsl_tbptt.tools.memory import measure, record
from rsl_tbptt.tools.memory_findings import judge_memory
from rsl_tbptt_tasks.memory import RecallEnv

IDLE_STEPS = 40
"""Steps of an episode after the answer, so that a memory could be longer than the task needs."""
HIDDEN_DIM = 32
SHORT = {
    "The memory is not used": "not used",
    "The state survives": "survives a reset",
    "An outlier": "outlier stays",
    "A frozen": "frozen sensor stays",
    "The state of an earlier": "missed reset stays",
    "gradient_length": "gradient cut",
}
"""Findings by the start of their text."""


class IdleRecall(RecallEnv):
    """The recall task, whose episodes go on after the answer; the cue may be hidden."""

    def __init__(self, *args: Any, blind: bool = False, **options: Any) -> None:
        """Set up the episodes; ``blind`` hides the cue from the policy."""
        super().__init__(*args, **options)
        self.shown = torch.tensor([0.0 if blind else 1.0, 1.0])
        self.max_episode_length += IDLE_STEPS
        self.episode_length_buf = torch.arange(self.num_envs) % self.max_episode_length

    def get_observations(self) -> TensorDict:
        """Return the observations, with the cue hidden if the policy is blind."""
        obs = super().get_observations()
        obs["policy"] = obs["policy"] * self.shown
        return obs

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Answer and advance; an episode ends some steps after the answer."""
        error = (actions.squeeze(-1) - self._cue).abs()
        rewards = torch.where(self._asked(), (1.0 - error).clamp(min=-1.0), 0.0)
        ended = self.episode_length_buf + 1 == self.max_episode_length
        self.episode_length_buf = torch.where(ended, 0, self.episode_length_buf + 1)
        self._cue = torch.where(ended, self._draw_cues(), self._cue)
        return self.get_observations(), rewards, ended.long(), {}


class Faulty:
    """A policy with a planted fault, which keeps its interface."""

    def __init__(self, policy: Any, fault: str) -> None:
        """Take the policy and ``never reset`` or ``latch``."""
        self.policy, self.fault, self.obs_groups = policy, fault, policy.obs_groups
        self.get_hidden_state = policy.get_hidden_state
        self.latched: Any = 0.0

    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Clear the memory, unless the fault is that nothing does where an episode ends."""
        if dones is None or self.fault != "never reset":
            self.policy.reset(dones)
            self.latched = 0.0 if dones is None else self.latched * (dones == 0)

    def __call__(self, obs: TensorDict) -> torch.Tensor:
        """Act; the latch adds 1 to all actions of an episode after an observation above 5."""
        actions = self.policy(obs)
        if self.fault == "latch":
            outlier = (obs["policy"].abs() > 5).any(-1).float()
            self.latched = torch.maximum(torch.as_tensor(self.latched), outlier)
            actions = actions + self.latched[:, None]
        return actions


def main() -> None:
    """Train every policy with every seed and print each row when it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recall-lengths", type=int, nargs="+", default=[4, 8, 16, 24])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[41, 42, 43, 44, 45])
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="Loss/")  # the blind ones learn nothing
    heads = ("policy", "cue", "reward per answer", "looks back", "wrong", "missed reset stays")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    rows = [("LSTM", length) for length in args.recall_lengths]
    for kind, length in (*rows, ("MLP", 8), ("blind LSTM", 8)):
        policies = [train(kind, length, args.iterations, seed) for seed in args.seeds]
        print(row(kind, length, policies, args.seeds), flush=True)
        for fault in ("never reset", "latch") if (kind, length) == ("LSTM", 8) else ():
            faulty = [Faulty(policy, fault) for policy in policies]
            print(row(f"LSTM, {fault}", length, faulty, args.seeds), flush=True)
    print(f"\n{time.process_time():.0f} s of processor time")


def train(kind: str, recall_length: int, iterations: int, seed: int) -> Any:
    """Distil a student from the right answers; return it."""
    memory = {"rnn_type": "lstm", "rnn_hidden_dim": HIDDEN_DIM} if "LSTM" in kind else {}
    cfg = {
        "num_steps_per_env": 2 * (recall_length + 1),
        "save_interval": 1000,
        "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
            "gradient_length": recall_length + 1,
            "learning_rate": 4e-3,
        },
        "student": {
            "class_name": "RNNModel" if memory else "MLPModel",
            "hidden_dims": [32],
            "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.1},
            **memory,
        },
        "teacher": {"class_name": "scripts.what_matters:PerfectTeacher"},
    }
    torch.manual_seed(seed)
    env = IdleRecall(128, recall_length, seed=seed, blind="blind" in kind)
    with contextlib.redirect_stdout(io.StringIO()):  # the runner's log
        runner: Any = DistillationRunner(env, cfg, log_dir=None)
        runner.alg.teacher_loaded = True
        if memory:
            keep_for(runner.alg.student.rnn.rnn, 2 * recall_length)
        runner.learn(iterations)
    return runner.get_inference_policy()


def keep_for(lstm: Any, steps: int) -> None:
    """Let the units of an untrained LSTM keep their state for 2 to so many steps.

    Without it few students learn a distance of 16 steps.

    References:
        Tallec and Ollivier (2018), arXiv 1804.11188: chrono initialisation.
    """
    bias = torch.log(1.0 + torch.rand(HIDDEN_DIM) * (steps - 2))
    lstm.bias_ih_l0.data[:HIDDEN_DIM] = -bias  # torch's order: input gate, forget gate, ...
    lstm.bias_ih_l0.data[HIDDEN_DIM : 2 * HIDDEN_DIM] = bias


def row(kind: str, recall_length: int, policies: list[Any], seeds: list[int]) -> str:
    """Measure policies; return a row of the table, with a value for each seed."""
    rewards, lengths, stays, wrong = [], [], [], []
    for policy, seed in zip(policies, seeds, strict=True):
        env = IdleRecall(64, recall_length, seed=1000 + seed, blind="blind" in kind)
        found = measure(policy, *record(env, policy, env.reset()[0], 300))
        known = {"checkpoint": kind, "step_seconds": None, "gradient_length": recall_length + 1}
        looked_at, findings = judge_memory(found | known)
        names = [next(n for s, n in SHORT.items() if text.startswith(s)) for text in findings]
        wrong.append(", ".join(names) or ("no memory" if "no memory" in looked_at else "-"))
        lengths.append(found["length"])
        stays.append(found["missed_reset"]["steps"])
        rewards.append(reward_per_answer(policy, recall_length, seed, "blind" in kind))
    verdicts = "; ".join(f"{wrong.count(n)} of {len(wrong)}: {n}" for n in dict.fromkeys(wrong))
    reward = f"{math.fsum(rewards) / len(rewards):.2f}, least {min(rewards):.2f}"
    per_seed = (" ".join(map(str, values)) for values in (lengths, stays))
    cells = (kind, str(recall_length), reward, next(per_seed), verdicts, next(per_seed))
    return f"| {' | '.join(cells)} |"


@torch.inference_mode()
def reward_per_answer(policy: Any, recall_length: int, seed: int, blind: bool) -> float:
    """Return a policy's mean reward per answer, over two episodes each of 128 environments."""
    env = IdleRecall(128, recall_length, seed=2000 + seed, blind=blind)
    obs, total = env.reset()[0], 0.0
    policy.reset()
    for _ in range(2 * env.max_episode_length):
        obs, rewards, dones, _ = env.step(policy(obs))
        policy.reset(dones)
        total += rewards.sum().item()
    return total / (2 * env.num_envs)


if __name__ == "__main__":
    main()
