"""Time one control step of an exported policy on one core, by the program that runs it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rsl_rl.models import RNNModel
from tensordict import TensorDict

from rsl_tbptt.deploy import Policy
from rsl_tbptt.tools.robot.c_code import CPolicy
from rsl_tbptt.tools.robot.export import Recorded, write_bundle
from rsl_tbptt.tools.robot.golden import draw
from rsl_tbptt.tools.robot.verify import TORCHSCRIPT

FLAGS = (
    "-O2",
    "-O3 -march=native -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math",
)
"""Compiler flags that are compared."""
Step = Callable[[dict[str, np.ndarray]], object]
CALLS = 200
"""Steps in one measurement; the result is the median of ten measurements."""


def step_times(rnn_type: str = "lstm", size: int = 256) -> dict[str, float]:
    """Return microseconds per step by form, for 48 observations, 12 actions, an RNN and an MLP.

    Args:
        rnn_type: "lstm" or "gru".
        size: Hidden size.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    obs = TensorDict({"policy": torch.randn(1, 48)}, batch_size=[1])
    options = {"hidden_dims": [256, 128, 64], "rnn_hidden_dim": size, "rnn_type": rnn_type}
    policy = RNNModel(obs, {"actor": ["policy"]}, "actor", 12, **options).eval()
    recorded = Recorded(policy, draw(policy, {}, {"policy": obs["policy"]}, CALLS, seed=0), "drawn")
    about = {"checkpoint": "benchmark", "iteration": 0}
    with TemporaryDirectory() as folder:
        write_bundle(Path(folder), recorded, {}, {}, about, targets=["c"])
        seen = recorded.trajectory["obs/policy"]
        return {form: _microseconds(step, seen) for form, step in _forms(Path(folder))}


def _forms(folder: Path) -> Iterator[tuple[str, Step]]:
    yield "onnxruntime, rsl_tbptt.deploy", Policy(folder).step
    module: Any = torch.jit.load(folder / TORCHSCRIPT)
    with torch.inference_mode():
        yield "TorchScript", lambda groups: module(torch.from_numpy(groups["policy"])[None])
    for flags in FLAGS:
        yield f"C, {flags}", CPolicy(folder, ("-std=c99", *flags.split())).step


def _microseconds(step: Step, seen: np.ndarray) -> float:
    times = []
    for _ in range(10):
        start = time.perf_counter()
        for obs in seen:
            step({"policy": obs})
        times.append((time.perf_counter() - start) / len(seen))
    return 1e6 * median(times)
