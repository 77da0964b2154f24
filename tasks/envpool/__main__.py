"""Train an agent of an EnvPool task: ``python -m rsl_tbptt_tasks.envpool TASK AGENT``.

The log folder, ``logs/rsl_rl/<task>/<time>_<run name>``, has the form of the other platforms'.
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from rsl_tbptt.compat.versions import resolve_callable
from rsl_tbptt.files import ENV, complete
from rsl_tbptt.tools.platforms.envpool import registered_tasks, setting
from rsl_tbptt_tasks.envpool import AGENTS


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m rsl_tbptt_tasks.envpool", description=__doc__)
    parser.add_argument("task", choices=(tasks := registered_tasks()))
    parser.add_argument("agent", help=f"one of {', '.join(AGENTS)}, or module:function of your own")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--iterations", type=int, help="in place of the agent's own number")
    parser.add_argument("--seed", type=int, default=1, help="of environments and networks")
    parser.add_argument("--device", default="cpu", help="where to learn: cpu or cuda:<index>")
    parser.add_argument("--run-name", help="end of the log folder's name, by default the agent's")
    parser.add_argument("--checkpoint", help="teacher, student to continue with, or own training")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="NAME=VALUE",
        help="of the task, such as env.history=5, or of the agent: agent.algorithm.gamma=0.98",
    )
    args = parser.parse_intermixed_args()
    agent = AGENTS.get(args.agent) or resolve_callable(args.agent)
    experiment = args.task.lower().replace("-", "_")
    cfg: dict[str, Any] = {"experiment_name": experiment, **deepcopy(agent())}
    settings: dict[str, Any] = cfg.pop("env", {})
    for word in args.settings:
        names, value = setting(word)
        place: Any = {"env": settings, "agent": cfg}
        for name in names[:-1]:
            place = place.get(name) if isinstance(place, dict) else None
        if len(names) < 2 or not isinstance(place, dict):
            parser.error(f"the setting is {word!r}, expected env.NAME=VALUE or agent.NAME=VALUE")
        place[names[-1]] = value
    torch.manual_seed(args.seed)
    env = tasks[args.task](args.num_envs, args.seed, args.device, **settings)
    started = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(
        "logs", "rsl_rl", experiment, f"{started}_{args.run_name or args.agent.split(':')[-1]}"
    )
    with complete(folder / ENV) as unfinished:
        unfinished.write_text(yaml.safe_dump({"envpool": args.task, "settings": settings}))
    runner = resolve_callable(cfg.pop("runner"))(env, cfg, str(folder), args.device)
    if args.checkpoint:
        runner.load(args.checkpoint)
        if runner.num_iterations:  # the rest of a training does not repeat its first episodes
            drawn = np.random.SeedSequence([args.seed, runner.num_iterations])
            env.seed(int(drawn.generate_state(1)[0]))
    runner.learn(args.iterations or cfg["max_iterations"], init_at_random_ep_len=True)


if __name__ == "__main__":
    main()
