"""Small trainings in other processes: started, killed, signalled and read."""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rsl_rl.modules import normalization
from torch.distributed.elastic.multiprocessing.errors import record

from rsl_tbptt.checkpoints.reading import numbered_checkpoints
from support.cut_recall import CutRecallEnv, gaussian
from support.rank_processes import TESTS, forkserver
from support.safe_runs import make_runner, model_cfg

SHARES = {1: (7,), 2: (3, 4), 3: (1, 4, 2)}
"""Environments of each rank."""
AT = 15
"""Step, of the third iteration, at which an event happens."""
# Before rsl_rl 5.5 each rank normalises by its own observations.
NORMALIZES = "all_reduce" in inspect.getsource(normalization)

OPTIONS: dict[str, dict[str, Any]] = {
    # The whole buffer in each mini-batch, because a random part would depend on the ranks.
    "distillation": {"buffer_rollouts": 20, "buffer_share": 100.0},
    "ppo": {
        "schedule": "adaptive",
        "desired_kl": 0.01,
        "rnd_cfg": {
            "weight": 5.0,
            "num_outputs": 3,
            "predictor_hidden_dims": [8],
            "target_hidden_dims": [8],
            "state_normalization": NORMALIZES,
            "reward_normalization": NORMALIZES,
        },
    },
}
"""Options with which any number of ranks gives the same numbers."""


class EventfulEnv(CutRecallEnv):
    """Fails in one step in the given way: "raises", "is killed", "stands still" or "shows nan"."""

    def __init__(self, first: int, last: int, event: str, step_s: float) -> None:
        super().__init__(first, last)
        self.event, self.step_s, self.steps = event, step_s, 0

    def step(self, actions: torch.Tensor) -> Any:
        self.steps += 1
        time.sleep(self.step_s)
        event = self.event if self.steps == AT else ""
        if event == "raises":
            raise ValueError("the simulator broke")
        if event in ("is killed", "stands still"):
            os.kill(os.getpid(), signal.SIGKILL if event == "is killed" else signal.SIGSTOP)
        obs, rewards, dones, extras = super().step(actions)
        if event == "shows nan":
            obs["policy"][1] = torch.nan
        return obs, rewards, dones, extras


def train(
    rank: int,
    num_ranks: int,
    folder: str,
    kind: str = "ppo",
    iterations: int = 10_000,
    event: str = "",
    step_s: float = 0.0,
    load: str = "",
    config: Mapping[str, Any] | None = None,
) -> None:
    """Train as one rank, from the newest checkpoint on as a job script's command does.

    The run's folder gets the files ``reached``, the number of iterations whose update is done;
    ``saved``, that number when the newest checkpoint was written; and of each rank
    ``status_<rank>``, the error that ended it, or ``result_<rank>``, its numbers and metrics.

    Args:
        rank: This rank.
        num_ranks: R.
        folder: The run's folder.
        kind: "distillation" or "ppo".
        iterations: Iterations of the whole run.
        event: What happens to the last rank; "" means nothing.
        step_s: Seconds that each step of the environments takes.
        load: Another checkpoint to begin from.
        config: More entries of the runner's config; "algorithm" are options.
    """
    torch.set_default_dtype(torch.float64)
    run, first = Path(folder), sum(SHARES[num_ranks][:rank])
    if event == "stands still":  # as in docs/howto/cluster.md
        ranks: dict[str, Any] = {"rank": rank, "world_size": num_ranks}
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=10), **ranks)
    last, here = first + SHARES[num_ranks][rank], rank == num_ranks - 1
    env = EventfulEnv(first, last, event if here else "", step_s)
    models = {
        "student" if kind == "distillation" else "actor": model_cfg(
            "RNNModel", distribution_cfg=gaussian(), obs_normalization=NORMALIZES
        )
    }
    if kind == "ppo":
        groups = {key: ["privileged"] for key in ("critic", "rnd_state")}
        models["obs_groups"] = {"actor": ["policy"], **groups}
    config = dict(config or {})
    options = {"num_mini_batches": 1, **OPTIONS[kind], **config.pop("algorithm", {})}
    runner = make_runner(run, kind, algorithm=options, env=env, **models, **config)
    if load or numbered_checkpoints(run):
        runner.load(load or str(run / "latest"))
    if rank == 0:
        runner.save = _then_tell(runner.save, run / "saved", runner)
        runner.logger.log = _then_tell(runner.logger.log, run / "reached", runner)
    try:
        runner.learn(iterations - runner.num_iterations)
    except BaseException as error:
        (run / f"status_{rank}").write_text(f"{type(error).__name__}: {error}")
        raise
    saved = {k: value for k, value in runner.alg.save().items() if k.endswith("state_dict")}
    torch.save((saved, runner.alg.metrics), run / f"result_{rank}")


def _then_tell(function: Callable[..., Any], file: Path, runner: Any) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        unfinished = file.with_name("unfinished")
        unfinished.write_text(str(runner.num_iterations))
        unfinished.replace(file)

    return told


def process(
    folder: Path,
    ranks: int = 1,
    *,
    kill_at: Callable[[], None] | None = None,
    by: int = signal.SIGKILL,
    torchrun: bool = False,
    **settings: Any,
) -> list[int | None]:
    """Run :func:`train` until it ends.

    Args:
        folder: The run's folder; the output goes there, into ``output_<rank>``.
        ranks: R. They have the variables of srun's tasks in docs/howto/cluster.md: rank 0 holds the
            store, and no agent watches them.
        kill_at: Returns when all processes get the signal ``by``.
        by: The signal.
        torchrun: Whether torchrun starts the ranks; the signal is for it.
        **settings: Arguments of ``train``.

    Returns:
        The exit codes; None for a rank that hangs after the others, which is killed.
    """
    folder.mkdir(exist_ok=True)
    if torchrun:
        return [_by_torchrun(folder, ranks, kill_at, by, settings)]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
    processes = []
    with forkserver() as context:
        for rank in range(ranks):
            arguments = (rank, ranks, port, str(folder), settings)
            processes.append(context.Process(target=_run, args=arguments))
            processes[-1].start()
    if kill_at is not None:
        kill_at()
        for each in processes:
            os.kill(each.pid, by)
    deadline = time.monotonic() + 240
    while any(each.is_alive() for each in processes) and time.monotonic() < deadline:
        if not all(each.is_alive() for each in processes):
            deadline = min(deadline, time.monotonic() + 30)
        time.sleep(0.02)
    codes = [each.exitcode for each in processes]
    for each in processes:
        each.kill()
    return codes


def _run(rank: int, num_ranks: int, port: str, folder: str, settings: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    with Path(folder, f"output_{rank}").open("w") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    train(rank, num_ranks, folder, **settings)


def _by_torchrun(
    folder: Path, ranks: int, kill_at: Callable[[], None] | None, by: int, settings: Any
) -> int:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    path = os.pathsep.join([TESTS, *filter(None, sys.path)])
    with (folder / "output_torchrun").open("w") as output:
        started = subprocess.Popen(
            [*launcher, str(ranks), "-m", "support.process", str(folder), json.dumps(settings)],
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    if kill_at is not None:
        kill_at()
        started.send_signal(by)
    return started.wait(400)


if __name__ == "__main__":
    torch.set_num_threads(1)
    own = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    record(train)(*own, sys.argv[1], **json.loads(sys.argv[2]))
