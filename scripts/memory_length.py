#!/usr/bin/env python
"""Measure the memory of policies whose memory is known, and print a table as Markdown.

Students learn to name a cue some steps after it was shown, or to reach a target that was shown at
the start, and are measured as `rsl-tbptt memory` does. Others cannot remember, or have a fault that
is planted after training.
"""

import argparse
import contextlib
import io
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml
from tensordict import TensorDict

from rsl_tbptt.tools.simulate.memory import measure, record
from rsl_tbptt.tools.simulate.memory_findings import judge_memory, memory_facts
from rsl_tbptt_tasks.memory import RecallEnv
from rsl_tbptt_tasks.memory.pulse import PulseEnv
from scripts.recall import make_runner

IDLE_STEPS = 40
"""Steps of an episode after the answer, so that a memory could be longer than the task needs."""
HIDDEN_DIM = 32
NEAR = 3
"""Steps between the second of two cues and the question."""
CUE_RATE = 0.08
"""Probability of a cue in each step, where any step may show one."""
ITERATIONS = 200
"""Iterations of teacher and students of the pulses."""
AGENT = Path(__file__).with_name("memory_length.yaml")
AGENTS = AGENT.with_name("weight_average.yaml")
"""Has the agents of the pulses."""
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
    """The recall task, whose episodes go on after the answer.

    Kinds differ in their cues: "blind" hides them; "two" shows a second one 3 steps before the
    question, and asks for the mean; "any" shows one at any step, and asks for the newest.
    """

    def __init__(self, num_envs: int, recall_length: int, seed: int, kind: str = "one") -> None:
        """Set up the episodes."""
        super().__init__(num_envs, recall_length, seed=seed)
        self.kind = kind
        self.max_episode_length += IDLE_STEPS
        self.episode_length_buf = torch.arange(self.num_envs) % self.max_episode_length
        self._near = self._draw_cues() if kind == "two" else 0.0 * self._cue
        self._age = self.episode_length_buf
        """Steps since the cue was shown."""

    def reset(self) -> tuple[TensorDict, dict[str, torch.Tensor]]:
        """Start an episode everywhere; return the start."""
        self._age = torch.zeros_like(self._age)
        return super().reset()

    def get_observations(self) -> TensorDict:
        """Return the observations, groups "policy" (N, 2) and "privileged" (N, 3)."""
        asked = self._asked()
        shown = torch.where(self._age == 0, self._cue, 0.0)
        answer = self._cue
        if self.kind == "two":
            shown = torch.where(self._age == self.recall_length - NEAR, self._near, shown)
            answer = (self._cue + self._near) / 2
        policy = torch.stack((shown * (self.kind != "blind"), asked.float()), dim=-1)
        privileged = torch.cat((policy, (answer * asked)[:, None]), dim=-1)
        return TensorDict({"policy": policy, "privileged": privileged}, batch_size=[self.num_envs])

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Answer and advance; an episode ends some steps after the answer."""
        error = (actions.squeeze(-1) - self.get_observations()["privileged"][:, 2]).abs()
        rewards = torch.where(self._asked(), (1.0 - error).clamp(min=-1.0), 0.0)
        ended = self.episode_length_buf + 1 == self.max_episode_length
        self.episode_length_buf = torch.where(ended, 0, self.episode_length_buf + 1)
        shows = ended
        if self.kind == "any":
            chances = torch.rand(self.num_envs, generator=self._generator)
            shows = ended | (chances < CUE_RATE)
        self._age = torch.where(shows, 0, self._age + 1)
        self._cue = torch.where(shows, self._draw_cues(), self._cue)
        if self.kind == "two":
            self._near = torch.where(shows, self._draw_cues(), self._near)
        return self.get_observations(), rewards, ended.long(), {}

    def _asked(self) -> torch.Tensor:
        return self._age == self.recall_length


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
    heads = ("policy", "cue", "reward", "looks back", "wrong", "missed reset stays")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    lengths = [("LSTM", "one", length) for length in args.recall_lengths]
    others = [("LSTM", "two", 20), ("LSTM", "any", 8), ("MLP", "one", 8), ("LSTM", "blind", 8)]
    for model, kind, length in lengths + others:
        # A cue at any step has to be overwritten by the next, which takes longer to learn.
        iterations = (3 if kind == "any" else 1) * args.iterations
        policies = [train(model, kind, length, iterations, seed) for seed in args.seeds]
        named = model if kind == "one" else f"{model}, {kind}"
        print(row(named, kind, length, policies, args.seeds), flush=True)
        for fault in ("never reset", "latch") if named == "LSTM" and length == 8 else ():
            faulty = [Faulty(policy, fault) for policy in policies]
            print(row(f"LSTM, {fault}", kind, length, faulty, args.seeds), flush=True)
    students = train_for_pulses(args.seeds)
    print(row("LSTM, pulses", "pulse", 115, students, args.seeds), flush=True)
    print(f"\n{time.process_time():.0f} s of processor time")


def train(model: str, kind: str, recall_length: int, iterations: int, seed: int) -> Any:
    """Distil a student from the right answers; return it."""
    cfg = yaml.safe_load(AGENT.read_text(encoding="utf-8"))
    cfg["num_steps_per_env"] = 2 * (recall_length + 1)
    cfg["algorithm"]["gradient_length"] = recall_length + 1
    cfg["algorithm"]["learning_rate_updates"] = iterations
    if model == "LSTM":
        memory = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": HIDDEN_DIM}
        cfg["student"] |= memory
    torch.manual_seed(seed)
    env = IdleRecall(128, recall_length, seed, kind)
    with contextlib.redirect_stdout(io.StringIO()):  # the runner's log
        runner = make_runner(env, cfg)
        if model == "LSTM":
            keep_for(runner.alg.student.rnn.rnn, 2 * recall_length)
        runner.learn(iterations)
    return runner.get_inference_policy()


def train_for_pulses(seeds: list[int]) -> list[Any]:
    """Train a teacher with PPO, distil a student for each seed, and return the students."""
    agents = yaml.safe_load(AGENTS.read_text(encoding="utf-8"))["pulse"]

    def make(agent: str, seed: int) -> Any:
        torch.manual_seed(seed)
        cfg = {**agents[agent], "save_interval": 1000, "max_iterations": ITERATIONS}
        return make_runner(PulseEnv(256, seed=seed), cfg)

    students = []
    with contextlib.redirect_stdout(io.StringIO()):
        teacher = make("teacher", seeds[0])
        teacher.learn(ITERATIONS)
        for seed in seeds:
            runner = make("student", seed)
            runner.alg.load(teacher.alg.save(), None, strict=True)
            runner.learn(ITERATIONS)
            students.append(runner.get_inference_policy())
    return students


def keep_for(lstm: Any, steps: int) -> None:
    """Let the units of an untrained LSTM keep their state for 2 to so many steps.

    Without it few students learn a distance of 16 steps.

    References:
        Tallec and Ollivier (2018), arXiv 1804.11188: chrono initialisation.
    """
    bias = torch.log(1.0 + torch.rand(HIDDEN_DIM) * (steps - 2))
    lstm.bias_ih_l0.data[:HIDDEN_DIM] = -bias  # torch's order: input gate, forget gate, ...
    lstm.bias_ih_l0.data[HIDDEN_DIM : 2 * HIDDEN_DIM] = bias


def row(name: str, kind: str, length: int, policies: list[Any], seeds: list[int]) -> str:
    """Measure policies; return a row of the table, with a value for each seed."""
    rewards, lengths, stays, wrong = [], [], [], []
    for policy, seed in zip(policies, seeds, strict=True):
        env = task(kind, 64, length, 1000 + seed)
        found = measure(policy, *record(env, policy, env.reset()[0], 300))
        # The students of the pulses were trained with the default of 15 steps.
        gradient = 15 if kind == "pulse" else length + 1
        found |= {"checkpoint": name, "step_seconds": None, "gradient_length": gradient}
        looked_at, findings = judge_memory(found)
        names = [next(n for s, n in SHORT.items() if text.startswith(s)) for text in findings]
        wrong.append(", ".join(names) or ("no memory" if "no memory" in looked_at else "-"))
        lengths.append(memory_facts(found)["looks back"].replace(" steps", ""))
        stays.append(found["missed_reset"]["steps"])
        rewards.append(mean_reward(policy, task(kind, 128, length, 2000 + seed)))
    verdicts = "; ".join(f"{wrong.count(n)} of {len(wrong)}: {n}" for n in dict.fromkeys(wrong))
    reward = f"{math.fsum(rewards) / len(rewards):.2f}, least {min(rewards):.2f}"
    missed = " ".join(map(str, stays))
    return f"| {name} | {length} | {reward} | {'; '.join(lengths)} | {verdicts} | {missed} |"


def task(kind: str, num_envs: int, length: int, seed: int) -> Any:
    """Return the task of a kind."""
    if kind == "pulse":
        return PulseEnv(num_envs, seed=seed)
    return IdleRecall(num_envs, length, seed, kind)


@torch.inference_mode()
def mean_reward(policy: Any, env: Any) -> float:
    """Return a policy's mean reward per answer, or per episode of the pulses, over two episodes."""
    obs, total, answers = env.reset()[0], 0.0, 0
    policy.reset()
    for _ in range(2 * env.max_episode_length):
        asked = env._asked().sum() if isinstance(env, IdleRecall) else env.episode_length_buf == 0
        answers += int(asked.sum())
        obs, rewards, dones, _ = env.step(policy(obs))
        policy.reset(dones)
        total += rewards.sum().item()
    return total / answers


if __name__ == "__main__":
    main()
