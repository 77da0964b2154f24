"""A task of your own. mjlab imports this when it starts; it has one id for each agent."""

from mjlab.tasks.registry import register_mjlab_task

from rsl_tbptt.integrations.mjlab import TbpttMjlabDistillationRunner, TbpttMjlabRecurrentRunner

from .agents import finetune_cfg, recurrent_cfg, student_cfg, teacher_cfg
from .env import env_cfg

for _agent, _rl_cfg, _runner in (
    ("Teacher", teacher_cfg(), TbpttMjlabRecurrentRunner),
    ("Student", student_cfg(), TbpttMjlabDistillationRunner),
    ("Recurrent", recurrent_cfg(), TbpttMjlabRecurrentRunner),
    ("Finetune", finetune_cfg(), TbpttMjlabRecurrentRunner),
):
    register_mjlab_task(f"my_task-{_agent}", env_cfg(), env_cfg(), _rl_cfg, _runner)
