"""mjlab tasks, registered through the entry-point group ``mjlab.tasks``.

mjlab has one agent per task id, so the agent's name ends the id. All ids of a task share its log
folder and its environment.
"""

from mjlab.envs import ManagerBasedRlEnvCfg
from mjlab.rl import RslRlBaseRunnerCfg
from mjlab.tasks.registry import register_mjlab_task

from rsl_tbptt.integrations.mjlab import TbpttMjlabDistillationRunner, TbpttMjlabRecurrentRunner
from rsl_tbptt_tasks.mjlab import cartpole_agents, velocity_agents
from rsl_tbptt_tasks.mjlab.cartpole import occluded_cartpole_env_cfg
from rsl_tbptt_tasks.mjlab.velocity import go1_env_cfg

Agents = dict[str, tuple[RslRlBaseRunnerCfg, type | None]]
"""Config and runner by the agent's name; None stands for ``TbpttMjlabRecurrentRunner``."""


def _register(
    task: str, env_cfg: ManagerBasedRlEnvCfg, play_env_cfg: ManagerBasedRlEnvCfg, agents: Agents
) -> None:
    """Register ``<task>-<agent>`` for every agent."""
    for name, (rl_cfg, runner_cls) in agents.items():
        runner_cls = runner_cls or TbpttMjlabRecurrentRunner
        register_mjlab_task(f"{task}-{name}", env_cfg, play_env_cfg, rl_cfg, runner_cls)


_register(
    "Tbptt-Cartpole-Occluded",
    occluded_cartpole_env_cfg(),
    occluded_cartpole_env_cfg(),
    {
        "Teacher": (cartpole_agents.teacher_cfg(), None),
        "Student": (cartpole_agents.student_cfg(), TbpttMjlabDistillationRunner),
        "Memoryless": (cartpole_agents.memoryless_cfg(), TbpttMjlabDistillationRunner),
        "Recurrent": (cartpole_agents.recurrent_cfg(), TbpttMjlabRecurrentRunner),
    },
)
for _terrain, _variant in (
    ("Flat", ""),
    ("Rough", ""),
    ("Rough", "Scan"),
    ("Flat", "Randomized"),
    ("Rough", "Randomized"),
):
    _register(
        f"Tbptt-Velocity-{_terrain}-Unitree-Go1" + (_variant and f"-{_variant}"),
        go1_env_cfg(_terrain, _variant),
        go1_env_cfg(_terrain, _variant, play=True),
        {
            "Teacher": (velocity_agents.teacher_cfg(_terrain, _variant), None),
            "Student": (
                velocity_agents.student_cfg(_terrain, _variant),
                velocity_agents.VelocityDistillationRunner,
            ),
            "Memoryless": (
                velocity_agents.memoryless_cfg(_terrain, _variant),
                velocity_agents.VelocityDistillationRunner,
            ),
            "Recurrent": (
                velocity_agents.recurrent_cfg(_terrain, _variant),
                velocity_agents.VelocityRecurrentRunner,
            ),
        },
    )
