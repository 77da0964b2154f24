"""A cartpole of MuJoCo Playground whose student sees no velocity.

``python my_task.py teacher`` trains by PPO, ``student`` distils that teacher into an LSTM, and
``finetune`` continues with the student by PPO. ``recurrent`` is PPO with memory from scratch.
"""

import argparse
from typing import Any

import torch
from env import PlaygroundEnv
from mujoco_playground._src.dm_control_suite import cartpole
from mujoco_playground.config import locomotion_params

from rsl_tbptt.runners import TbpttDistillationRunner, TbpttOnPolicyRunner


class OccludedCartpole(cartpole.Balance):
    """Playground's cartpole with the groups of its locomotion tasks; ``state`` is measured."""

    def _get_obs(self, data: Any, info: Any) -> dict[str, Any]:
        everything = super()._get_obs(data, info)
        return {"state": everything[:3], "privileged_state": everything}

    def _dense_reward(self, *args: Any) -> Any:
        # Per second, as in the locomotion tasks: a critic learns values of 1 sooner than of 100.
        return super()._dense_reward(*args) * self.dt


def my_cfg() -> Any:
    """Return the task's config; Playground's registry has those of its own tasks."""
    cfg = cartpole.default_config()
    cfg.impl, cfg.episode_length = "jax", 200
    return cfg


def make(num_envs: int, seed: int, device: str) -> PlaygroundEnv:
    """Build the environment; ``rsl-tbptt`` takes ``--env my_task:make``."""
    cfg = my_cfg()
    task = OccludedCartpole(swing_up=False, sparse=False, config=cfg)
    rank = None if device == "cpu" else torch.device(device).index
    return PlaygroundEnv(task, num_envs, seed, cfg.episode_length, 1, device_rank=rank)


def noise(init_std: float) -> dict:
    """Return the action noise that a policy explores with."""
    return {"distribution_cfg": {"class_name": "GaussianDistribution", "init_std": init_std}}


# Playground's own values, written for rsl_rl 3: `algorithm` fits, `policy` becomes two models.
STOCK = locomotion_params.rsl_rl_config("Go1JoystickFlatTerrain").to_dict()
PPO = {
    **STOCK["algorithm"],
    "class_name": "rsl_tbptt.algorithms:TbpttPPO",
    "schedule": "adaptive",  # a small task learns faster so
    "learning_rate": 1e-3,
}
ROLLOUT = {"num_steps_per_env": 24, "save_interval": 50}
MLP = {"class_name": "MLPModel", "hidden_dims": [64, 64], "obs_normalization": True}
LSTM = {**MLP, "class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 64}

TEACHER = {
    **ROLLOUT,
    "max_iterations": 100,
    "obs_groups": {"actor": ["privileged_state"], "critic": ["privileged_state"]},
    "algorithm": PPO,
    "actor": {**MLP, **noise(1.0)},
    "critic": MLP,
}
STUDENT = {
    **ROLLOUT,
    "max_iterations": 50,
    "obs_groups": {"student": ["state"], "teacher": ["privileged_state"]},
    "algorithm": {
        "class_name": "rsl_tbptt.algorithms:TbpttDistillation",
        "gradient_length": 24,  # steps that the gradient flows back
        "teacher_checkpoint": "logs/teacher/latest",
    },
    "student": {**LSTM, **noise(0.1)},
    "teacher": TEACHER["actor"],  # so that the teacher's checkpoint fits
}
RECURRENT = {
    **TEACHER,
    "obs_groups": {"actor": ["state"], "critic": ["privileged_state"]},
    "algorithm": {**PPO, "gradient_length": 24},
    "actor": {**LSTM, **noise(1.0)},
}
FINETUNE = {
    **RECURRENT,
    "max_iterations": 60,
    "obs_groups": {**RECURRENT["obs_groups"], "teacher": ["privileged_state"]},
    "algorithm": {
        **RECURRENT["algorithm"],
        "schedule": "fixed",
        "learning_rate": 1e-4,
        "entropy_coef": 0.0,
        "critic_warmup_iterations": 20,  # a fresh critic must not spoil the student
        "teacher_cfg": TEACHER["actor"],  # without its pull PPO soon unlearned the task
        "teacher_coef": 0.1,
    },
}
POLICIES = {
    "teacher": (TEACHER, TbpttOnPolicyRunner),
    "student": (STUDENT, TbpttDistillationRunner),
    "recurrent": (RECURRENT, TbpttOnPolicyRunner),
    "finetune": (FINETUNE, TbpttOnPolicyRunner),
}


def main() -> None:
    """Train the policy that the command line names; ``logs/NAME/latest`` is its checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", choices=POLICIES)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--iterations", type=int, help="in place of the policy's own number")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # faster for networks as small as these
    cfg, runner_class = POLICIES[args.policy]
    env = make(args.num_envs, seed=0, device=args.device)
    runner = runner_class(env, cfg, f"logs/{args.policy}", args.device)
    if args.policy == "finetune":
        runner.load("logs/student/latest")
    runner.learn(args.iterations or cfg["max_iterations"], init_at_random_ep_len=True)


if __name__ == "__main__":
    main()
