#!/usr/bin/env python
"""Compare what a training can deploy: its newest weights, or averages over updates.

Each policy is trained once per seed. At a quarter, half and all of its iterations the newest
weights and their averages are kept; each is evaluated on fresh episodes afterwards. Averages do not
change a training, unless the average acts in the rollouts. `weight_average.yaml` lists the tasks.
Results are appended to `--out`, one line of JSON each; a training that is there is not made again.
"""

import argparse
import contextlib
import copy
import io
import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml
from tabulate import tabulate

from rsl_tbptt.tools.platforms import Simulation, Trained, load_platform
from rsl_tbptt.tools.simulate.evaluate import mean_and_interval, run_first_episodes
from rsl_tbptt_tasks.memory import PulseEnv, RecallEnv

TASKS = Path(__file__).with_name("weight_average.yaml")
DECAYS = (4, 8, 16)
SHARES = (0.25, 0.5, 1.0)
NEWEST = "newest"
EVALUATION_SEED = 9000
TEACHER_SEED = 7


def recall(num_envs: int, seed: int, device: str) -> RecallEnv:
    """Make the recall task with a distance of 8 steps."""
    return RecallEnv(num_envs, 8, device, seed)


def pulse(num_envs: int, seed: int, device: str) -> PulseEnv:
    """Make the task of the point mass."""
    return PulseEnv(num_envs, device, seed)


class Averages:
    """The newest weights of a model in training, and their averages over updates."""

    def __init__(self, algorithm: Any, model: Any, *, acts: str) -> None:
        """Take the algorithm and the model that it trains.

        Args:
            algorithm: The algorithm; its ``update`` is replaced.
            model: The model.
            acts: Name of the weights that act in the rollouts.
        """
        self._model, self._acts, self._num = model, acts, 0
        names = (NEWEST, *(f"k = {k}" for k in DECAYS))
        self.weights = {name: copy.deepcopy(model.state_dict()) for name in names}
        self._update, algorithm.update = algorithm.update, self._update_and_average

    def _update_and_average(self) -> Any:
        self._model.load_state_dict(self.weights[NEWEST])
        metrics, self._num = self._update(), self._num + 1
        newest = copy.deepcopy(self._model.state_dict())
        averaged = dict(self._model.named_parameters())
        for k in DECAYS:
            share = (k + 1) / (self._num + k)
            for name, value in self.weights[f"k = {k}"].items():
                value.lerp_(newest[name], share if name in averaged else 1.0)
        self.weights[NEWEST] = newest
        self._model.load_state_dict(self.weights[self._acts])
        return metrics


class Study:
    """The trainings of a task in one simulation."""

    def __init__(self, name: str, task: dict[str, Any], env: Any) -> None:
        """Take the entry of the task, its name there, and its environments."""
        self.name, self.task, self.env = name, task, env
        self.platform = load_platform(task["platform"])

    def runner(self, agent: Any, seed: int, changes: dict[str, Any]) -> Any:
        """Make a runner of an agent whose algorithm has some other options."""
        torch.manual_seed(seed)
        name = self.task["task"]
        if isinstance(agent, str):
            trained = Trained(self.platform.task_id(name, agent), agent)
            cfg = copy.deepcopy(dict(self.platform.registered_agent(trained)))
        else:
            trained, cfg = Trained(name, ""), copy.deepcopy({**agent, "save_interval": 10**6})
        cfg["algorithm"] |= changes
        cfg["max_iterations"] = self.task["iterations"]
        self.platform.restart(self.env, seed)
        return self.platform.make_runner(trained, self.env, cfg, "cpu")

    def teacher(self) -> dict[str, Any] | None:
        """Train the teacher and return its parameters; None if its answers are known."""
        if "teacher" not in self.task:
            return None
        runner = self.runner(self.task["teacher"], TEACHER_SEED, {})
        runner.learn(self.task["teacher_iterations"], init_at_random_ep_len=True)
        return copy.deepcopy(runner.alg.get_policy().state_dict())

    def train(
        self, seed: int, acts: str, changes: dict[str, Any], teacher: dict[str, Any] | None
    ) -> dict[int, dict[str, dict[str, torch.Tensor]]]:
        """Train a policy; return its weights by iteration and name."""
        total, kept = self.task["iterations"], {}
        runner = self._with_teacher(self.runner(self.task["student"], seed, changes), teacher)
        self.model = runner.alg.get_policy()
        averages = Averages(runner.alg, self.model, acts=acts)
        stops = [*(round(share * total) for share in SHARES), *self.task.get("also_after", [])]
        for iteration in range(1, total + 1):
            runner.learn(1, init_at_random_ep_len=iteration == 1)
            if iteration in stops:
                kept[iteration] = copy.deepcopy(averages.weights)
        return kept

    def _with_teacher(self, runner: Any, teacher: dict[str, Any] | None) -> Any:
        if hasattr(runner.alg, "teacher"):
            if teacher is not None:
                runner.alg.teacher.load_state_dict(teacher)
            runner.alg.teacher_loaded = True
        return runner

    def evaluate(self, weights: dict[str, torch.Tensor], model: Any) -> float:
        """Return the mean return of fresh episodes, one per environment."""
        model.load_state_dict(weights)
        obs = self.platform.restart(self.env, EVALUATION_SEED)
        longest = int(torch.as_tensor(self.env.max_episode_length).max())
        returns, _, _ = run_first_episodes(self.env, model, obs, max_steps=longest + 1)
        return returns.mean().item()

    def lines(self, seeds: list[int], done: set[str]) -> Iterator[dict[str, Any]]:
        """Yield the results of all trainings that are not done."""
        teacher, distils = self.teacher(), "ppo" not in self.name
        if teacher is not None and "teacher" not in done:
            runner = self._with_teacher(self.runner(self.task["student"], 0, {}), teacher)
            yield {"training": "teacher", "return": self.evaluate(teacher, runner.alg.teacher)}
        rates = ("constant", "linear")[: 1 + distils]
        variants: Any = product(seeds, self.task.get("acts", [NEWEST]), rates)
        for seed, acts, rate in variants:
            if (training := f"{seed}, {acts} acts, {rate} rate") in done:
                continue
            changes: dict[str, Any] = {}
            if distils:  # the average is made here
                updates = None if rate == "constant" else self.task["iterations"]
                changes = {"weight_average": False, "learning_rate_updates": updates}
                changes["held_out_envs"] = 0
            kept = self.train(seed, acts, changes, teacher)
            returns = {
                iteration: {name: self.evaluate(w, self.model) for name, w in each.items()}
                for iteration, each in kept.items()
            }
            yield {"training": training, "acts": acts, "rate": rate, "returns": returns}


def main() -> None:
    """Train and evaluate what is missing, or print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = yaml.safe_load(TASKS.read_text(encoding="utf-8"))
    parser.add_argument("task", choices=tasks)
    parser.add_argument("--seeds", type=int, nargs="+", default=[51, 52, 53, 54, 55])
    parser.add_argument("--out", type=Path, default=Path("weight_average"), help="folder")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    args = parser.parse_args()
    file = args.out / f"{args.task}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if args.table:
        print(table(found))
        return
    task, done = tasks[args.task], {each["training"] for each in found}
    names = {"task": task["task"], "num_envs": task["num_envs"], "seed": TEACHER_SEED}
    platform = load_platform(task["platform"])
    warnings.filterwarnings("ignore")
    with (
        platform.simulated_env(Simulation(**names, device="cpu")) as env,
        file.open("a") as out,
        contextlib.redirect_stdout(io.StringIO()),  # the runners' logs
    ):
        for line in Study(args.task, task, env).lines(args.seeds, done):
            print(json.dumps(line), file=out, flush=True)


def table(lines: list[dict[str, Any]]) -> str:
    """Return the mean returns over seeds with their intervals, as Markdown."""
    values: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for line in lines:
        for iteration, returns in line.get("returns", {}).items():
            for name, value in returns.items():
                if line["acts"] in (NEWEST, name):
                    values[line["acts"], line["rate"], name][int(iteration)].append(value)
    iterations = sorted({each for row in values.values() for each in row})
    rows = [
        [*key, *(_with_interval(row[iteration]) for iteration in iterations)]
        for key, row in sorted(values.items())
    ]
    heads = ("acts", "rate", "deployed", *(f"after {each}" for each in iterations))
    teacher = [each["return"] for each in lines if each["training"] == "teacher"]
    text = tabulate(rows, heads, tablefmt="github", disable_numparse=True)
    return text + (f"\n\nThe teacher's return is {teacher[0]:.3g}." if teacher else "")


def _with_interval(values: list[float]) -> str:
    mean, low, _ = mean_and_interval(values) if len(values) > 1 else (values[0], values[0], 0)
    return f"{mean:.3g} ± {mean - low:.2g}"


if __name__ == "__main__":
    main()
