"""Training on several GPUs, as far as a machine without any can show it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.isaaclab_page import NEEDS_GPUS, commands
from torch import distributed
from torch.nn.utils import parameters_to_vector

from rsl_tbptt_tasks.memory import RecallEnv

RANKS = 2
RUNNERS = {"TbpttPPO": OnPolicyRunner, "TbpttDistillation": DistillationRunner}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What torchrun left, which started this file once per rank."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", str(RANKS), __file__]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    return folder


@pytest.mark.parametrize("algorithm", RUNNERS)
def test_ranks_under_the_stock_runner_agree_and_the_first_writes(algorithm, folder):
    first, second = (torch.load(folder / algorithm / f"rank_{rank}.pt") for rank in range(RANKS))
    assert torch.equal(first["after"], second["after"])
    assert not torch.equal(first["before"], second["before"])  # other seeds
    assert not torch.equal(first["before"], first["after"])
    assert first["num_envs"] != second["num_envs"]  # environments of their own
    assert len(list((folder / algorithm).glob("events.*"))) == 1


def run_rank():
    """Train with each algorithm on this rank's environments, gloo standing for NCCL."""
    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    for algorithm in RUNNERS:
        folder = Path(algorithm)
        folder.mkdir(exist_ok=True)
        torch.save(train(algorithm, rank, folder), folder / f"rank_{rank}.pt")
    distributed.destroy_process_group()


def train(algorithm, rank, folder):
    """Train with rsl_rl's runner, whose process group exists; return what the policy was and is."""

    class Runner(RUNNERS[algorithm]):
        def _configure_multi_gpu(self):
            self.is_distributed, self.gpu_world_size = True, RANKS
            self.gpu_local_rank = self.gpu_global_rank = rank
            described = {"global_rank": rank, "local_rank": rank, "world_size": RANKS}
            self.cfg["multi_gpu"] = described

    torch.manual_seed(rank)
    env = RecallEnv(num_envs=4 + rank, recall_length=3)
    runner = Runner(env, config(algorithm), log_dir=str(folder))
    runner.alg.teacher_loaded = True
    policy = runner.alg.get_policy()
    before = parameters_to_vector(policy.parameters()).detach().clone()
    runner.learn(num_learning_iterations=2)
    after = parameters_to_vector(policy.parameters()).detach()
    return {"before": before, "after": after, "num_envs": env.num_envs}


def config(algorithm):
    """Return a runner's config with one LSTM."""
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.5}
    lstm = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 8, "hidden_dims": [8]}
    mlp = {"class_name": "MLPModel", "hidden_dims": [8]}
    roles = {"actor": lstm | {"distribution_cfg": dict(gaussian)}, "critic": mlp}
    if algorithm == "TbpttDistillation":
        roles = {
            role: model | {"distribution_cfg": dict(gaussian)}
            for role, model in (("student", lstm), ("teacher", mlp))
        }
    groups = {role: ["privileged" if role in ("critic", "teacher") else "policy"] for role in roles}
    return {
        "num_steps_per_env": 6,
        "save_interval": 100,
        "obs_groups": groups,
        "algorithm": {"class_name": f"rsl_tbptt.algorithms:{algorithm}", "gradient_length": 3},
        **roles,
    }


@pytest.mark.isaaclab
def test_isaaclab_starts_torchrun_with_one_process_per_gpu(isaaclab):
    words = commands()[NEEDS_GPUS].words
    _, printed = isaaclab.call(
        "isaaclab.cli:train_multigpu", [*words[1:], "--dry_run"], CUDA_VISIBLE_DEVICES="0,1"
    )
    (line,) = [line for line in printed.splitlines() if "torch.distributed.run" in line]
    started = shlex.split(line)
    assert started[1:5] == ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
    assert "--distributed" in started
    for word in words[3:]:  # all but the number of GPUs
        assert word in started


@pytest.mark.isaaclab
def test_isaaclab_refuses_more_processes_than_gpus(isaaclab):
    words = commands()[NEEDS_GPUS].words
    _, printed = isaaclab.call(
        "isaaclab.cli:train_multigpu", words[1:], succeeds=False, CUDA_VISIBLE_DEVICES="0"
    )
    assert "exceeds the 1 CUDA device(s) visible" in printed


if __name__ == "__main__":
    run_rank()
