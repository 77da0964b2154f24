"""Train one policy: ``python -m my_task.train teacher``, then ``student``, then ``finetune``.

``recurrent`` is PPO with memory from scratch. It needs no other policy.
"""

import argparse

import torch

from rsl_tbptt.runners import TbpttDistillationRunner, TbpttOnPolicyRunner

from .env import MyEnv

MLP = {"class_name": "MLPModel", "hidden_dims": [32, 32]}
LSTM = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 32, "hidden_dims": [32]}
ROLLOUT = {"num_steps_per_env": 24, "save_interval": 50}
PPO = "rsl_tbptt.algorithms:TbpttPPO"
DISTILLATION = "rsl_tbptt.algorithms:TbpttDistillation"


def gaussian(init_std: float) -> dict:
    """Return the action noise that a policy explores with."""
    return {"class_name": "GaussianDistribution", "init_std": init_std}


TEACHER = {
    **ROLLOUT,
    "max_iterations": 40,
    "obs_groups": {"actor": ["privileged"], "critic": ["privileged"]},
    "algorithm": {"class_name": PPO},
    "actor": {**MLP, "distribution_cfg": gaussian(1.0)},
    "critic": MLP,
}
STUDENT = {
    **ROLLOUT,
    "max_iterations": 40,
    "obs_groups": {"student": ["policy"], "teacher": ["privileged"]},
    "algorithm": {
        "class_name": DISTILLATION,
        "gradient_length": 24,  # steps that the gradient flows back
        "teacher_checkpoint": "logs/teacher/latest",
    },
    "student": {**LSTM, "distribution_cfg": gaussian(0.1)},
    "teacher": TEACHER["actor"],  # so that the teacher's checkpoint fits
}
RECURRENT = {
    **ROLLOUT,
    "max_iterations": 100,
    "obs_groups": {"actor": ["policy"], "critic": ["privileged"]},
    "algorithm": {"class_name": PPO, "gradient_length": 24},
    "actor": {**LSTM, "distribution_cfg": gaussian(1.0)},
    "critic": MLP,
}
FINETUNE = {
    **RECURRENT,
    "max_iterations": 200,
    "algorithm": {
        **RECURRENT["algorithm"],
        "schedule": "fixed",
        "learning_rate": 3e-4,
        "entropy_coef": 0.0,
        "student_action_std": 0.2,
        "critic_warmup_iterations": 40,  # a fresh critic must not spoil the student
    },
}
POLICIES = {
    "teacher": (TEACHER, TbpttOnPolicyRunner),
    "student": (STUDENT, TbpttDistillationRunner),
    "recurrent": (RECURRENT, TbpttOnPolicyRunner),
    "finetune": (FINETUNE, TbpttOnPolicyRunner),
}
"""Config and runner."""


def main() -> None:
    """Train the policy that the command line names; ``logs/NAME/latest`` is its checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", choices=POLICIES)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # faster for networks as small as these
    config, runner_class = POLICIES[args.policy]
    env = MyEnv(num_envs=128, device=args.device)
    runner = runner_class(env, config, log_dir=f"logs/{args.policy}", device=args.device)
    if args.policy == "finetune":
        runner.load("logs/student/latest")
    runner.learn(config["max_iterations"], init_at_random_ep_len=True)


if __name__ == "__main__":
    main()
