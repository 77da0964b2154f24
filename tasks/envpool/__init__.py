"""EnvPool tasks, registered through the entry-point group ``envpool.tasks``.

``python -m rsl_tbptt_tasks.envpool Tbptt-Go1-Flat teacher`` trains one of the agents.
"""

from __future__ import annotations

from functools import partial

from rsl_tbptt_tasks.envpool import go1_agents
from rsl_tbptt_tasks.envpool.go1 import Faults, Go1Env

TASKS = {
    "Tbptt-Go1-Flat": partial(Go1Env, "Flat"),
    "Tbptt-Go1-Flat-Real": partial(Go1Env, "Flat", faults=Faults()),
    "Tbptt-Go1-Rough": partial(Go1Env, "Rough"),
    "Tbptt-Go1-Rough-Real": partial(Go1Env, "Rough", faults=Faults()),
}
"""Functions ``(num_envs, seed, device, **settings)`` by id."""
AGENTS = {
    "teacher": go1_agents.teacher,
    "student": go1_agents.student,
    "memoryless": go1_agents.memoryless,
    "recurrent": go1_agents.recurrent,
}
"""Functions that return an agent's config by name, the same for all tasks."""
