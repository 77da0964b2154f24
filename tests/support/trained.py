"""Policies from checkpoints, as the commands of ``rsl-tbptt`` load them."""

from rsl_tbptt.tools.run import read_run
from rsl_tbptt.tools.simulate.policies import build_policy


def load_policy(checkpoint, agent=None, obs=None, trust=()):
    """Load the student of a distillation, or PPO's actor."""
    return build_policy(read_run(checkpoint, agent=agent, trust=trust), obs=obs)


def as_a_runner_builds_it(algorithm):
    """Note the config of the student of ``make_distillation``, an LSTM, which checkpoints hold."""
    student = {"class_name": "RNNModel", "hidden_dims": [8], "rnn_type": "lstm"}
    student |= {"rnn_hidden_dim": 6}
    student["distribution_cfg"] = {"class_name": "GaussianDistribution", "init_std": 0.3}
    algorithm.model_configs = {"student": student}
    return algorithm
