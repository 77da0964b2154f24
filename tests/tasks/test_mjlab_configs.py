"""mjlab tasks: their registration, their observations, and agents that fit each other."""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import dataclasses

import pytest

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

import mjlab.tasks  # noqa: F401  # registers all tasks
from mjlab.rl import MjlabOnPolicyRunner
from mjlab.tasks.registry import list_tasks, load_env_cfg, load_rl_cfg, load_runner_cls
from mjlab.tasks.velocity.rl import VelocityOnPolicyRunner

from rsl_tbptt.algorithms.options import DistillationOptions
from rsl_tbptt.integrations.mjlab import TbpttMjlabDistillationRunner, TbpttMjlabRecurrentRunner

CARTPOLE = "Tbptt-Cartpole-Occluded"
CAMERA = "Tbptt-Cartpole-Camera"
SCAN = "Tbptt-Velocity-Rough-Unitree-Go1-Scan"
PLAIN = ("Tbptt-Velocity-Flat-Unitree-Go1", "Tbptt-Velocity-Rough-Unitree-Go1")
GO1 = (*PLAIN, *(f"{task}-Randomized" for task in PLAIN), SCAN)
TASKS = (CARTPOLE, CAMERA, *GO1)
AGENTS = ("Teacher", "Student", "Memoryless", "Recurrent")
SEEN = {CAMERA: ("camera",), SCAN: ("actor", "scan")}
"""Observation groups of students with images."""


@pytest.mark.parametrize("task", TASKS)
def test_every_agent_is_registered_with_the_same_environment(task):
    ids = {f"{task}-{agent}" for agent in AGENTS}
    assert ids == {name for name in list_tasks() if name.rpartition("-")[0] == task}
    ids.discard(f"{CAMERA}-Teacher")  # it has no camera
    assert len({load_rl_cfg(name).experiment_name for name in ids}) == 1
    for play in (False, True):
        first, *others = (dataclasses.asdict(load_env_cfg(name, play=play)) for name in ids)
        assert all(other == first for other in others)


@pytest.mark.parametrize("task", TASKS)
def test_the_students_teacher_is_the_trained_actor(task):
    teacher = load_rl_cfg(f"{task}-Teacher")
    for agent in ("Student", "Memoryless"):
        student = load_rl_cfg(f"{task}-{agent}")
        assert student.teacher == teacher.actor
        assert student.obs_groups["teacher"] == teacher.obs_groups["actor"] == ("critic",)
        assert student.obs_groups["student"] == SEEN.get(task, ("actor",))
        options = dataclasses.asdict(student.algorithm)
        del options["class_name"]
        DistillationOptions.parse(options)


@pytest.mark.parametrize("task", TASKS)
def test_recurrent_ppo_sees_what_the_student_sees(task):
    recurrent, student = load_rl_cfg(f"{task}-Recurrent"), load_rl_cfg(f"{task}-Student")
    assert recurrent.obs_groups == {"actor": SEEN.get(task, ("actor",)), "critic": ("critic",)}
    model = "rsl_tbptt.models:CNNRNNModel" if task in SEEN else "RNNModel"
    assert recurrent.actor.class_name == student.student.class_name == model
    without = load_rl_cfg(f"{task}-Memoryless").student
    assert without.class_name == ("CNNModel" if task in SEEN else "MLPModel")
    assert without.cnn_cfg == student.student.cnn_cfg
    # PPO continues a distilled student, so everything but the noise is equal.
    noise = {"distribution_cfg": None}
    ours, theirs = dataclasses.asdict(recurrent.actor), dataclasses.asdict(student.student)
    assert {**ours, **noise} == {**theirs, **noise}


@pytest.mark.parametrize("task", TASKS)
def test_runners_distil_students_with_memory(task):
    assert load_runner_cls(f"{task}-Teacher") is TbpttMjlabRecurrentRunner  # loads on any device
    for agent in ("Student", "Memoryless"):
        assert issubclass(load_runner_cls(f"{task}-{agent}"), TbpttMjlabDistillationRunner)
    recurrent = load_runner_cls(f"{task}-Recurrent")
    assert issubclass(recurrent, TbpttMjlabRecurrentRunner)
    assert not issubclass(recurrent, TbpttMjlabDistillationRunner)
    assert issubclass(recurrent, MjlabOnPolicyRunner)
    assert issubclass(recurrent, VelocityOnPolicyRunner) == (task in GO1)  # exports as mjlab does


def test_the_cartpoles_student_sees_noisy_positions_and_its_teacher_everything():
    critic = load_env_cfg(f"{CARTPOLE}-Student").observations["critic"]
    assert {"cart_velocity", "pole_velocity", "cart_mass", "pole_mass"} <= set(critic.terms)
    assert not critic.enable_corruption
    for play in (False, True):
        actor = load_env_cfg(f"{CARTPOLE}-Student", play=play).observations["actor"]
        assert set(actor.terms) == {"cart_position", "pole_angle"}
        assert actor.enable_corruption
        assert all(term.noise is not None for term in actor.terms.values())


@pytest.mark.parametrize("task", GO1)
def test_go1s_student_is_proprioceptive_and_its_teacher_is_not(task):
    observations = load_env_cfg(f"{task}-Student").observations
    actor, critic = observations["actor"], observations["critic"]
    assert set(actor.terms) == {
        "base_ang_vel",
        "projected_gravity",
        "joint_pos",
        "joint_vel",
        "actions",
        "command",
    }
    assert actor.enable_corruption
    assert set(actor.terms) | {"base_lin_vel", "foot_contact"} <= set(critic.terms)
    assert ("height_scan" in critic.terms) == ("Rough" in task)
    assert not critic.enable_corruption


@pytest.mark.parametrize("play", [False, True])
@pytest.mark.parametrize("plain", PLAIN)
def test_randomized_tasks_differ_only_in_latency_friction_and_payload(plain, play):
    ours = load_env_cfg(f"{plain}-Randomized-Student", play=play)
    theirs = load_env_cfg(f"{plain}-Student", play=play)
    critic = ours.observations["critic"].terms
    late = {name for name, term in ours.observations["actor"].terms.items() if term.delay_max_lag}
    assert late == {"base_ang_vel", "projected_gravity", "joint_pos", "joint_vel"}
    assert not any(term.delay_max_lag for term in critic.values())
    shown = critic.keys() - theirs.observations["critic"].terms.keys()
    assert shown == {"trunk_mass", "foot_friction"}
    assert ours.events.keys() ^ theirs.events.keys() == {"base_com", "payload", "first_targets"}
    common = ours.events.keys() & theirs.events.keys()
    changed = {name for name in common if ours.events[name] != theirs.events[name]}
    assert changed == {f"foot_friction_{kind}" for kind in ("slide", "spin", "roll")}
    for name in ("actions", "commands", "rewards", "terminations", "curriculum", "decimation"):
        assert getattr(ours, name) == getattr(theirs, name)
