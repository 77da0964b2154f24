"""How often `rsl-tbptt compare` is wrong, on tasks whose truth is known.

`python -m scripts.known_verdicts FOLDER` goes on with what is in the folder.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from rsl_tbptt.runners import TbpttOnPolicyRunner
from rsl_tbptt.tools.run import read_run
from rsl_tbptt.tools.simulate.compare import FILE, Plan, compare
from rsl_tbptt.tools.simulate.verdict import ENOUGH, OPEN, PAYS, USELESS
from rsl_tbptt_tasks.memory.recall import RecallEnv


class CartPole(VecEnv):
    """A pole on a cart, in gusts of wind; groups "position" and "velocity" of cart and pole."""

    num_actions, max_episode_length, cfg = 1, 200, {}

    def __init__(self, num_envs: int, seed: int, device: str) -> None:
        """Start an episode everywhere."""
        self.num_envs, self.device = num_envs, device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.reset()

    def reset(self) -> tuple[TensorDict, dict]:
        """Start an episode everywhere."""
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self._state = self._drawn()
        return self.get_observations(), {}

    def get_observations(self) -> TensorDict:
        """Return the observations."""
        place, rate = self._state.split(2, dim=1)
        return TensorDict({"position": place, "velocity": rate}, [self.num_envs]).clone()

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Push the cart by up to 10 N for 0.02 s; the reward is 1 until cart or pole leaves."""
        place, rate = self._state.split(2, dim=1)
        angle, turn = place[:, 1], rate[:, 1]
        push = (10.0 * actions[:, 0].clamp(-1, 1) + 0.05 * turn.square() * angle.sin()) / 1.1
        inertia = 0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1)
        spin = (9.8 * angle.sin() - angle.cos() * push) / inertia
        drive = push - 0.05 * spin * angle.cos() / 1.1
        wind = torch.randn(self.num_envs, device=self.device, generator=self._generator)
        rate = rate + torch.stack((0.02 * drive, 0.02 * spin + 0.1 * wind), dim=1)
        place = place + 0.02 * rate
        fell = (place.abs() > place.new_tensor([2.4, 0.21])).any(1)
        self.episode_length_buf = self.episode_length_buf + 1
        late = self.episode_length_buf >= self.max_episode_length
        state, dones = torch.cat((place, rate), dim=1), fell | late
        self._state = torch.where(dones[:, None], self._drawn(), state)
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf)
        return self.get_observations(), (~fell).float(), dones.long(), {"time_outs": late & ~fell}

    def _drawn(self) -> torch.Tensor:
        drawn = torch.rand(self.num_envs, 4, device=self.device, generator=self._generator)
        return 0.1 * drawn - 0.05


def recall_3(num_envs: int, seed: int, device: str) -> RecallEnv:
    """Return recall of a cue within five steps."""
    return RecallEnv(num_envs, 3, device, seed)


def recall_12(num_envs: int, seed: int, device: str) -> RecallEnv:
    """Return recall of a cue that five steps do not reach."""
    return RecallEnv(num_envs, 12, device, seed)


TEACHERS = {"recall_3": ["privileged"], "recall_12": ["privileged"]}
TEACHERS["CartPole"] = ["position", "velocity"]
TRUTH = {
    ("recall_12", "policy"): PAYS,
    ("recall_3", "policy"): ENOUGH,
    ("CartPole", "position"): ENOUGH,
    ("recall_12", "privileged"): USELESS,
    ("CartPole", "position velocity"): USELESS,
}
"""The right verdict, by task and what students see."""


def teach(task: str, groups: list[str], folder: Path) -> None:
    """Train a teacher."""
    torch.manual_seed(0)
    model = {"class_name": "MLPModel", "hidden_dims": [64, 64], "obs_normalization": True}
    noise = {"class_name": "GaussianDistribution", "init_std": 0.5}
    cfg = {
        "num_steps_per_env": 32,
        "save_interval": 1000,
        "obs_groups": {"actor": groups, "critic": groups},
        "algorithm": {
            "class_name": "rsl_tbptt.algorithms:TbpttPPO",
            "schedule": "fixed",
            "entropy_coef": 0.0,
            "gamma": 0.98,
        },
        "actor": {**model, "distribution_cfg": noise},
        "critic": model,
    }
    env = globals()[task](256, 0, "cpu")
    TbpttOnPolicyRunner(env, cfg, str(folder)).learn(300, init_at_random_ep_len=True)


def main() -> None:
    """Make what is missing, and print how often each verdict is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=10, help="comparisons of each task")
    parser.add_argument("--iterations", type=int, default=30, help="of each student")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task, groups in TEACHERS.items():
        if not (args.folder / task).exists():
            teach(task, groups, args.folder / task)
    for repeat in range(args.repeats):
        for task, seen in TRUTH:
            folder = args.folder / f"{task} {seen} {repeat}"
            run = read_run(args.folder / task / "model_299.pt", "rsl_rl")
            name, seed = f"{__spec__.name}:{task}", 10 * repeat + 201
            plan = Plan(task=name, obs=seen.split(), num_envs=64, seed=seed)
            going_on = (folder / FILE).exists()
            compare(run, folder, plan, iterations=args.iterations, resume=going_on)
    for (task, seen), truth in TRUTH.items():
        files = sorted(args.folder.glob(f"{task} {seen} [0-9]*/{FILE}"))
        given = Counter(json.loads(file.read_text())["verdict"] for file in files)
        wrong = given.total() - given[truth] - given[OPEN]
        print(f"{task}, students see {seen}: {truth} | {dict(given)} | {wrong} wrong")


if __name__ == "__main__":
    main()
