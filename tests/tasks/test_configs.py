"""Registration, agents and observations of the tasks on either platform; no simulator runs here."""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import dataclasses
import importlib.util
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from rsl_rl.utils import resolve_callable

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions

MJLAB = bool(importlib.util.find_spec("mjlab"))
if MJLAB:
    pytest.importorskip("mjlab.tasks")  # whose warnings it hides
    from mjlab.rl import MjlabOnPolicyRunner
    from mjlab.tasks.registry import list_tasks, load_env_cfg, load_rl_cfg, load_runner_cls
    from mjlab.tasks.velocity.rl import VelocityOnPolicyRunner

    from rsl_tbptt.integrations.mjlab import TbpttMjlabDistillationRunner, TbpttMjlabRecurrentRunner
else:
    pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")
    import gymnasium as gym
    from isaaclab.utils import to_dict
    from isaaclab_tasks.utils import resolve_task_config
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry

    for entry_point in entry_points(group="isaaclab.tasks"):
        entry_point.load()

# From Isaac Lab's own velocity configs and modules, when they are imported and built.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'RigidBodyMaterialCfg' is deprecated:DeprecationWarning"),
]
on_mjlab = pytest.mark.skipif(not MJLAB, reason="mjlab has an environment of its own")
on_isaaclab = pytest.mark.skipif(MJLAB, reason="Isaac Lab has an environment of its own")

ROBOTS = ["Unitree-Go1"] if MJLAB else ["Anymal-D", "Unitree-Go2"]
CARTPOLE, CAMERA = "Tbptt-Cartpole-Occluded", "Tbptt-Cartpole-Camera"
VELOCITY = [f"Tbptt-Velocity-{ground}-{robot}" for ground in ("Flat", "Rough") for robot in ROBOTS]
RANDOMIZED = [f"{task}-Randomized" for task in VELOCITY if MJLAB]
SCAN = [f"{task}-Scan" for task in VELOCITY if "Rough" in task]
LEGGED = [*VELOCITY, *RANDOMIZED, *SCAN]
TASKS = [CARTPOLE, *([] if MJLAB else [CAMERA]), *LEGGED]
of_every_task = pytest.mark.parametrize("task", TASKS)

STUDENT, TEACHER = ("actor", "critic") if MJLAB else ("policy", "teacher")
"""Observation groups."""
COMMAND, PHYSICS = ("command", {"foot_contact"}) if MJLAB else ("velocity_commands", {"base_mass"})
SENSORS = {"base_ang_vel", "projected_gravity", "joint_pos", "joint_vel", "actions", COMMAND}
CART_PHYSICS = {"cart_mass", "pole_mass"} if MJLAB else {"mass", "damping"}
AGENTS = {
    "Teacher": "rsl_rl_cfg_entry_point",
    "Student": "rsl_rl_distillation_recurrent_cfg_entry_point",
    "Memoryless": "rsl_rl_distillation_cfg_entry_point",
    "Recurrent": "rsl_rl_recurrent_cfg_entry_point",
} | ({} if MJLAB else {"Finetune": "rsl_rl_finetune_cfg_entry_point"})


def config(task, agent):
    """Return an agent's config as a dictionary."""
    if MJLAB:
        return dataclasses.asdict(load_rl_cfg(f"{task}-{agent}"))
    return to_dict(load_cfg_from_registry(task, AGENTS[agent]))


def algorithm_of(cfg):
    """Return the algorithm's class, and its options without those that rsl_rl takes."""
    taken = ("class_name", "rnd_cfg", "symmetry_cfg", "share_cnn_encoders")
    options = {name: value for name, value in cfg["algorithm"].items() if name not in taken}
    return resolve_callable(cfg["algorithm"]["class_name"]), options


def observed(task, agent="Student", play=False):
    """Return which terms are noisy, by observation group."""
    if MJLAB:
        of = load_env_cfg(f"{task}-{agent}", play=play).observations
        groups = {name: vars(group) | group.terms for name, group in of.items()}
    else:
        options = {"play_mode": play, "overrides": ["physics=newton_mjwarp"]}
        of = vars(resolve_task_config(task, None, **options)[0].observations)
        groups = {name: vars(group) for name, group in of.items() if group}
    return {
        name: {
            term: group["enable_corruption"] and cfg.noise is not None
            for term, cfg in group.items()
            if hasattr(cfg, "func")
        }
        for name, group in groups.items()
    }


def test_exactly_our_tasks_are_registered():
    if MJLAB:
        ours, tasks = list_tasks(), [f"{task}-{agent}" for task in TASKS for agent in AGENTS]
    else:
        ours, tasks = gym.registry, TASKS
    assert sorted(tasks) == sorted(name for name in ours if name.startswith("Tbptt-"))


@on_isaaclab
def test_registration_imports_no_isaaclab():
    code = "import sys, rsl_tbptt_tasks.isaaclab; print([m for m in sys.modules if 'isaac' in m])"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['rsl_tbptt_tasks.isaaclab']"


@of_every_task
def test_agents_share_a_folder_and_see_groups_of_the_environment(task):
    agents = {agent: config(task, agent) for agent in AGENTS}
    assert len({cfg["experiment_name"] for cfg in agents.values()}) == 1
    for agent, cfg in agents.items():
        for groups in cfg["obs_groups"].values():
            assert set(groups) <= observed(task, agent).keys()


@of_every_task
def test_students_learn_from_the_trained_actor_and_differ_in_memory_only(task):
    teacher, student, other = (config(task, a) for a in ("Teacher", "Student", "Memoryless"))
    assert student["teacher"] == teacher["actor"]
    assert student["teacher"]["distribution_cfg"] is not None
    assert [*student["obs_groups"]["teacher"]] == [*teacher["obs_groups"]["actor"]] == [TEACHER]
    groups = {CAMERA: ["camera"]}.get(task, [STUDENT, *(["scan"] if task in SCAN else [])])
    assert [*student["obs_groups"]["student"]] == groups
    algorithm, options = algorithm_of(student)
    assert algorithm is TbpttDistillation
    DistillationOptions.parse(options)
    sees = task in (CAMERA, *SCAN)
    with_memory, without = student.pop("student"), other.pop("student")
    assert with_memory["class_name"] == ("rsl_tbptt.models:CNNRNNModel" if sees else "RNNModel")
    assert without["class_name"] == ("CNNModel" if sees else "MLPModel")
    assert with_memory.get("cnn_cfg") == without.get("cnn_cfg")
    assert student | {"run_name": None} == other | {"run_name": None}


@pytest.mark.parametrize("agent", [*AGENTS][3:])
@of_every_task
def test_ppo_with_memory_sees_what_the_student_sees_and_its_critic_what_the_teacher_sees(
    task, agent
):
    teacher, student, ppo = (config(task, name) for name in ("Teacher", "Student", agent))
    assert ppo["obs_groups"]["actor"] == student["obs_groups"]["student"]
    assert ppo["obs_groups"]["critic"] == teacher["obs_groups"]["critic"]
    assert ppo["critic"] == teacher["critic"]
    for network in (student["student"], ppo["actor"]):
        network["distribution_cfg"].pop("init_std")
    assert student["student"] == ppo["actor"]  # it continues a distilled student
    algorithm, options = algorithm_of(ppo)
    assert algorithm is TbpttPPO
    parsed = PpoOptions.parse(options)
    parsed.check_rollout(ppo["num_steps_per_env"], recurrent=True)
    parsed.check_training(ppo["num_steps_per_env"], 4096, recurrent=True)


@pytest.mark.parametrize("task", [CARTPOLE, *LEGGED])
def test_students_see_noisy_sensors_and_teachers_the_exact_state_and_physics(task):
    seen, privileged = SENSORS, PHYSICS | {"base_lin_vel"}
    if task == CARTPOLE:
        seen = {"cart_position", "pole_angle"}
        privileged = CART_PHYSICS | {"cart_velocity", "pole_velocity"}
    for play in (False, True)[: 1 + (task == CARTPOLE)]:  # there the noise is the task
        groups = observed(task, play=play)
        assert groups[STUDENT].keys() == seen
        assert seen | privileged <= groups[TEACHER].keys()
        assert ("height_scan" in groups[TEACHER]) == ("Rough" in task)
        assert {n for n, noisy in groups[STUDENT].items() if noisy} == seen - {"actions", COMMAND}
        assert not any(groups[TEACHER].values())


@on_mjlab
@of_every_task
def test_agents_of_mjlab_share_an_environment_and_get_runners_that_keep_the_memory(task):
    ids = {agent: f"{task}-{agent}" for agent in AGENTS}
    for play in (False, True):
        of = {a: dataclasses.asdict(load_env_cfg(name, play=play)) for a, name in ids.items()}
        assert of["Teacher"] == of["Student"] == of["Memoryless"] == of["Recurrent"]
    runners = {agent: load_runner_cls(name) for agent, name in ids.items()}
    assert runners["Teacher"] is TbpttMjlabRecurrentRunner  # loads on any device
    for agent in ("Student", "Memoryless"):
        assert issubclass(runners[agent], TbpttMjlabDistillationRunner)
    recurrent = runners["Recurrent"]
    assert issubclass(recurrent, TbpttMjlabRecurrentRunner)
    assert not issubclass(recurrent, TbpttMjlabDistillationRunner)
    assert issubclass(recurrent, MjlabOnPolicyRunner)
    assert issubclass(recurrent, VelocityOnPolicyRunner) == (task in LEGGED)  # exports as mjlab


@on_mjlab
@pytest.mark.parametrize("play", [False, True])
@pytest.mark.parametrize("task", RANDOMIZED)
def test_randomized_tasks_differ_only_in_latency_friction_and_payload(task, play):
    ours = load_env_cfg(f"{task}-Student", play=play)
    theirs = load_env_cfg(f"{task.removesuffix('-Randomized')}-Student", play=play)
    groups = ours.observations
    late = {name for name, term in groups["actor"].terms.items() if term.delay_max_lag}
    assert late == {"base_ang_vel", "projected_gravity", "joint_pos", "joint_vel"}
    assert not any(term.delay_max_lag for term in groups["critic"].terms.values())
    shown = groups["critic"].terms.keys() - theirs.observations["critic"].terms.keys()
    assert shown == {"trunk_mass", "foot_friction"}
    changed = {name for name, term in ours.events.items() if theirs.events.get(name) != term}
    friction = {f"foot_friction_{kind}" for kind in ("slide", "spin", "roll")}
    assert changed == {"payload", "first_targets", *friction}
    assert theirs.events.keys() - ours.events.keys() == {"base_com"}
    for name in ("actions", "commands", "rewards", "terminations", "curriculum", "decimation"):
        assert getattr(ours, name) == getattr(theirs, name)
