"""Memory and speed of EnvPool's Go1, as a table: ``python -m scripts.benchmark.envpool``.

With meshes environments are as EnvPool makes them, without as ``EnvPoolEnv`` does. Each row is
measured in a process of its own, with one thread and random actions.
"""

import time
from typing import Any

import torch
from tabulate import tabulate

from rsl_tbptt.integrations.envpool import EnvPoolEnv, resident_mb
from scripts.benchmark.memory import with_exact_malloc

ROWS = [
    (f"Go1Joystick{terrain}Terrain-v1", meshes, num_envs)
    for terrain in ("Flat", "Rough")
    for meshes, num_envs in ((True, 64), (False, 64), (False, 512))
]


class WithMeshes(EnvPoolEnv):
    """Loads EnvPool's own files, with all that pictures need."""

    def _pool_of(self, number: int, seed: int) -> Any:
        self._made_with["base_path"] = self.settings["base_path"]
        return super()._pool_of(number, seed)


def measure(task: str, meshes: bool, num_envs: int) -> tuple[float, float, float]:
    """Return MB an environment, seconds to make all, and steps a second of CPU time.

    One environment is made before, so that the library does not count.
    """
    kind = WithMeshes if meshes else EnvPoolEnv
    kept = kind(task, 1, num_threads=1)
    before, start = resident_mb(), time.perf_counter()
    env = kind(task, num_envs, num_threads=1)
    taken, made = resident_mb() - before, time.perf_counter() - start
    actions = 0.5 * torch.randn(20, num_envs, env.num_actions)
    start = time.process_time()
    for action in actions:
        env.step(action)
    del kept
    return taken / num_envs, made, actions[..., 0].numel() / (time.process_time() - start)


def main() -> None:
    """Print the table."""
    headers = ("task", "meshes", "environments", "MB each", "s to make", "steps a second")
    rows = [
        (task, "yes" if meshes else "no", num, *with_exact_malloc(measure, task, meshes, num))
        for task, meshes, num in ROWS
    ]
    print(tabulate(rows, headers, "github", floatfmt=("", "", "", ".1f", ".1f", ".0f")))


if __name__ == "__main__":
    main()
