"""Compare students of one teacher that differ in memory: ``rsl-tbptt compare``.

An MLP, an MLP that sees the last steps, and an LSTM, of about as many weights, imitate the same
teacher in the same simulation for the same number of steps. Each is evaluated on fresh episodes::

    seed 1:  mlp  history  lstm      new weights and new episodes for each seed,
    seed 2:  mlp  history  lstm      the same episodes for all students of a seed
    ...

:mod:`rsl_tbptt.tools.simulate.verdict` has the rule by which the returns become a verdict.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tqdm import tqdm

from rsl_tbptt.algorithms.curricula import count_from
from rsl_tbptt.compat.versions import RNNModel
from rsl_tbptt.files import write_json
from rsl_tbptt.runners import TbpttDistillationRunner
from rsl_tbptt.tools.run import Run
from rsl_tbptt.tools.simulate import memory
from rsl_tbptt.tools.simulate.evaluate import SEED, Start, longest_episode, started, statistics_of
from rsl_tbptt.tools.simulate.verdict import HISTORY, LSTM, MLP, SEES_ALL, decided, describe

FILE, PAST = "compare.json", "last_steps"
OBS = ("policy", "actor")
"""Groups that students see by default: Isaac Lab's and EnvPool's name, and mjlab's."""
FEWEST_ITERATIONS, TIMED_ITERATIONS = 10, 5
MEMORY_ENVS, MEMORY_STEPS = 64, 300


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the numbers of a comparison depend on, besides the number of seeds."""

    task: str
    overrides: Sequence[str] = ()
    obs: Sequence[str] = ()
    """Groups that the students see, vectors. None is the first of :data:`OBS` that is there."""
    num_envs: int = 256
    """Environments to train in, and episodes to evaluate, at least 8."""
    history: int = 5
    """Steps that the second student sees."""
    gradient_length: int = 24
    """Steps of a rollout, through all of which the gradient flows back."""
    bias: bool = False
    """Whether to train an MLP and an LSTM that see what the teacher sees, too."""
    seed: int = 1
    """Seed of the first students and of their episodes; the others' follow."""


@dataclass(frozen=True)
class Student:
    """A student to train."""

    groups: list[str]
    model: dict[str, Any]
    """Its class and arguments, in rsl_rl's form."""


class WithHistory:
    """An environment with one more group: the last steps of some groups, the oldest first."""

    def __init__(self, env: Any, groups: Sequence[str], length: int, bar: Any) -> None:
        """Take an environment in rsl_rl's form, and a progress bar for its steps."""
        self._env, self._groups, self._length, self._bar = env, groups, length, bar
        self.earned: list[torch.Tensor] = []
        """The mean reward and the share of episodes that ended early, of each step; of a training
        if it is cleared before."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps of the running episodes, which runners draw. Shape: (N,)."""
        return self._env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, steps: torch.Tensor) -> None:
        self._env.episode_length_buf = steps

    def begin(self, obs: TensorDict) -> TensorDict:
        """Return the observations after a reset, batch size (N,), with their history."""
        return self._extended(obs, self._newest(obs).expand(-1, self._length, -1))

    def get_observations(self) -> TensorDict:
        """Return the newest observations. A simulator's would draw their noise again."""
        return self._obs.clone()

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Step; where an episode ends, all last steps are the first one of the next."""
        obs, rewards, dones, extras = self._env.step(actions)
        self._bar.update()
        early = dones != 0
        if (time_outs := extras.get("time_outs")) is not None:
            early = early & (time_outs.to(dones.device).view_as(dones) == 0)
        self.earned.append(torch.stack((rewards.mean(), early.float().mean())))
        newest = self._newest(obs)
        past = torch.cat((self._past[:, 1:], newest), dim=1)
        past = torch.where((dones != 0).view(-1, 1, 1), newest, past)
        return self._extended(obs, past), rewards, dones, extras

    def last_gain(self) -> float:
        """Return how much the return rose from the third quarter of the noted steps to the fourth.

        A quarter's return is its mean reward times the steps of a mean episode if episodes end
        early with the quarter's rate.
        """
        longest, returns = longest_episode(self._env), []
        for quarter in torch.stack(self.earned).double().tensor_split(4)[2:]:
            reward, rate = quarter.mean(0).tolist()
            returns.append(reward * ((1 - (1 - rate) ** longest) / rate if rate else longest))
        return returns[1] - returns[0]

    def _newest(self, obs: TensorDict) -> torch.Tensor:
        return torch.cat([obs[group] for group in self._groups], dim=-1).unsqueeze(1)

    def _extended(self, obs: TensorDict, past: torch.Tensor) -> TensorDict:
        self._past = past
        self._obs = obs.clone(False).update({PAST: past.flatten(1)})
        return self._obs


class Bench:
    """Trains and evaluates students in one simulation."""

    def __init__(self, start: Start, run: Run, plan: Plan, bar: Any) -> None:
        """Take a teacher, its environments that have just been reset, and a progress bar."""
        self._run, self._plan, self._sim, self.bar = run, plan, start.env, bar
        self._env = WithHistory(start.env, plan.obs, plan.history, bar)
        obs, num_actions = self._env.begin(start.obs), start.env.num_actions
        lstm = {"rnn_type": "lstm", "rnn_hidden_dim": 256, **_model([256, 128])}
        groups, copied = {"student": [*plan.obs]}, deepcopy(lstm)  # rsl_rl takes configs apart
        built = RNNModel(obs[:1].to("cpu"), groups, "student", num_actions, **copied)
        num_weights = sum(parameter.numel() for parameter in built.parameters())

        def mlp(*groups: str) -> Student:
            """Return an MLP with layers of 4 w, 2 w and w units, of as many weights."""
            # 10 w^2 + per_unit w = num_weights
            per_unit = 4 * sum(obs[group].shape[1] for group in groups) + num_actions + 7
            width = round((math.sqrt(per_unit**2 + 40 * num_weights) - per_unit) / 20)
            model = {"class_name": "MLPModel", **_model([4 * width, 2 * width, width])}
            return Student([*groups], model)

        lstm["class_name"] = "RNNModel"
        self.students = {MLP: mlp(*plan.obs), HISTORY: mlp(PAST), LSTM: Student([*plan.obs], lstm)}
        """By name."""
        if plan.bias:
            seen = [*run.groups]
            self.students |= zip(SEES_ALL, (mlp(*seen), Student(seen, lstm)), strict=True)

    def iterations_in(self, seconds: float, seeds: int) -> int:
        """Return how many iterations each student can train if all of all seeds take so long.

        Raises:
            ValueError: If there are too few.
        """
        needed = 0.0
        self.bar.set_description("measuring")
        for name in self.students:
            self.train(name, 0, 1)  # compiles
            begin = time.monotonic()
            self.train(name, 0, TIMED_ITERATIONS)
            needed += seeds * (time.monotonic() - begin) / TIMED_ITERATIONS
        if (iterations := int(seconds / needed)) < FEWEST_ITERATIONS:
            lacking = (FEWEST_ITERATIONS * needed - seconds) / 60.0
            raise ValueError(
                f"--minutes leaves {max(seconds, 0.0):.0f} s to train students, expected at least"
                f" {FEWEST_ITERATIONS * needed:.0f} s, for {FEWEST_ITERATIONS} iterations of each:"
                f" raise it by {lacking:.1f}, or lower --seeds or --num-envs."
            )
        return iterations

    def steps_of(self, iterations: int) -> int:
        """Return the most environment steps of training and evaluating a student."""
        return iterations * self._plan.gradient_length + longest_episode(self._sim)

    def add(self, name: str, seed: int, result: dict[str, Any], folder: Path) -> None:
        """Train and evaluate a student, save it, and add it to a result."""
        begin, iterations = time.monotonic(), result["iterations"]
        file = folder / f"{name}-{seed}" / f"model_{iterations - 1}.pt"
        policy = self.train(name, seed, iterations, file)
        last_gain = self._env.last_gain()
        found = self.evaluate(policy, SEED + seed)
        if name == LSTM and "looks_back" not in result:
            result["looks_back"] = self.looks_back(policy)
        found["num_weights"] = sum(p.numel() for p in policy.parameters())
        found |= {"last_gain": last_gain, "seconds": time.monotonic() - begin}
        result["students"].append({"name": name, "seed": seed, **found})

    def train(self, name: str, seed: int, iterations: int, file: Path | None = None) -> Any:
        """Train a student, save it, and return its policy."""
        plan, student = self._plan, self.students[name]
        self._restart(seed)
        self._env.earned.clear()
        torch.manual_seed(seed)  # here: a simulator draws as many numbers as it likes
        cfg = {
            "num_steps_per_env": plan.gradient_length,
            "save_interval": iterations,
            "max_iterations": iterations,
            "obs_groups": {"student": student.groups, "teacher": [*self._run.groups]},
            "algorithm": {
                "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
                "gradient_length": plan.gradient_length,
            },
            "student": student.model,
            "teacher": self._run.config[self._run.part],
        }
        with redirect_stdout(StringIO()):  # rsl_rl prints its models
            runner = TbpttDistillationRunner(self._env, deepcopy(cfg), None, str(self._sim.device))
        runner.alg.load({"actor_state_dict": self._run.state_dict}, {"teacher": True}, True)
        runner.learn(iterations, init_at_random_ep_len=True)
        if file is not None:
            runner.save(str(file))
        return runner.alg.get_policy().eval()

    def evaluate(self, policy: Any, seed: int) -> dict[str, Any]:
        """Return the statistics of fresh episodes, one per environment."""
        seconds = self._run.platform.step_seconds(self._sim)
        return statistics_of(self._env, policy, self._restart(seed), seconds)

    def looks_back(self, policy: Any) -> int:
        """Return how many steps a policy looks back."""
        obs, starts = memory.record(self._env, policy, self._restart(SEED), MEMORY_STEPS)
        few = slice(MEMORY_ENVS)
        return memory.length_of(memory.measure(policy, obs[:, few], starts[:, few]))

    @torch.inference_mode()  # as all steps of a simulator
    def _restart(self, seed: int) -> TensorDict:
        count_from(self._sim, self._run.counted_steps)  # no student meets a later curriculum
        return self._env.begin(self._run.platform.restart(self._sim, seed))


def _model(hidden_dims: list[int]) -> dict[str, Any]:
    return {
        "hidden_dims": hidden_dims,
        "activation": "elu",
        "obs_normalization": True,
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.1},
    }


def compare(
    run: Run,
    folder: Path,
    plan: Plan,
    *,
    seeds: int = 3,
    minutes: float = 20.0,
    iterations: int | None = None,
    resume: bool = False,
    device: str = "cpu",
) -> None:
    """Train and evaluate students of a teacher, and print whether memory pays.

    Args:
        run: The teacher.
        folder: Gets ``compare.json`` and the students' checkpoints.
        plan: What to train in which task.
        seeds: Number of students of each kind.
        minutes: Time for all of a new comparison, on this machine.
        iterations: Iterations of each student; None is as many as there is time for.
        resume: Whether to go on with the comparison in ``folder``, as far as it is not finished.
        device: Device of everything, ``cpu`` or ``cuda:<index>``.

    Raises:
        ValueError: If the comparison in ``folder`` is of another plan or not to be resumed, there
            is too little time, a number is too small, or a group is missing or no vector.
    """
    begin, path = time.monotonic(), folder / FILE
    _check_numbers(plan, seeds, iterations)
    if resume != path.exists():
        raise ValueError(
            f"{path} {'does not exist' if resume else 'exists'}: --resume goes on with what is"
            " there, and --output names another folder."
        )
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # more wait for each other, see `child_environment`
    where = {"task": plan.task, "overrides": plan.overrides, "device": device}
    bar = tqdm(unit=" steps", desc="teacher", mininterval=1.0)
    with bar, started(run, num_envs=plan.num_envs, seed=plan.seed, **where) as start:
        plan = replace(plan, obs=_seen_by_students(start.obs, plan.obs))
        bench = Bench(start, run, plan, bar)
        noted = json.loads(json.dumps({"teacher_checkpoint": run.checkpoint.name, **asdict(plan)}))
        if resume:
            result = json.loads(path.read_text("utf-8"))
            if (old := result["plan"]) != noted:
                raise ValueError(f"{path} is of {old}, expected {noted} to go on with it.")
        else:
            began = time.monotonic()
            result = {"plan": noted, "teacher": bench.evaluate(start.policy, SEED), "students": []}
            evaluations = seeds * len(bench.students) * (time.monotonic() - began)
            left = 60.0 * minutes - (time.monotonic() - begin) - evaluations
            result["iterations"] = iterations or bench.iterations_in(left, seeds)
        try:
            _add_missing(bench, result, range(plan.seed, plan.seed + seeds), folder)
        finally:  # Ctrl+C leaves what is finished
            bar.close()
            print(describe(result))


def _check_numbers(plan: Plan, seeds: int, iterations: int | None) -> None:
    memory.check_enough(MEMORY_STEPS, plan.num_envs)
    numbers = {"seeds": (seeds, 1), "iterations": (iterations, 1), "history": (plan.history, 1)}
    numbers["gradient-length"] = (plan.gradient_length, 4)  # for four quarters
    for name, (value, limit) in numbers.items():
        if value is not None and value < limit:
            raise ValueError(f"--{name} is {value}, expected at least {limit}.")


def _add_missing(bench: Bench, result: dict[str, Any], seeds: Iterable[int], folder: Path) -> None:
    """Train and evaluate the students that a result lacks; write it after each."""
    done = {(each["seed"], each["name"]) for each in result["students"]}
    missing = [each for each in product(seeds, bench.students) if each not in done]
    bench.bar.reset(len(missing) * bench.steps_of(result["iterations"]) + MEMORY_STEPS)
    for seed, name in missing:
        bench.bar.set_description(f"{name}, seed {seed}")
        bench.add(name, seed, result, folder)
        verdict = decided(result)
        write_json(folder / FILE, {**result, "verdict": verdict and verdict.name})


def _seen_by_students(obs: TensorDict, named: Sequence[str]) -> list[str]:
    """Return the groups that students see.

    Raises:
        ValueError: If one is missing or no vector.
    """
    groups = [*named] or [group for group in OBS if group in obs][:1]
    shapes = {str(name): [*values.shape[1:]] for name, values in obs.items()}
    if not groups or any(len(shapes.get(group, ())) != 1 for group in groups):
        raise ValueError(
            f"--obs is {groups}, expected groups of vectors among {shapes}: those that a robot has."
        )
    return groups
