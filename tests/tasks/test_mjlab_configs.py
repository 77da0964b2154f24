"""mjlab tasks: their registration, their observations, and agents that fit each other."""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import dataclasses

import pytest

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

import mjlab.tasks  # noqa: F401  # registers all tasks
from mjlab.tasks.registry import list_tasks, load_env_cfg, load_rl_cfg

from rsl_tbptt.algorithms.options import DistillationOptions

CARTPOLE = "Tbptt-Cartpole-Occluded"
CAMERA = "Tbptt-Cartpole-Camera"
SCAN = "Tbptt-Velocity-Rough-Unitree-Go1-Scan"
GO1 = ("Tbptt-Velocity-Flat-Unitree-Go1", "Tbptt-Velocity-Rough-Unitree-Go1", SCAN)
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


def terms(task, group):
    stock = task.startswith("Mjlab")
    return load_env_cfg(task if stock else f"{task}-Student").observations[group]


def test_the_cartpoles_student_sees_noisy_positions_and_its_teacher_everything():
    critic = terms(CARTPOLE, "critic")
    assert {"cart_velocity", "pole_velocity", "cart_mass", "pole_mass"} <= set(critic.terms)
    assert not critic.enable_corruption
    for play in (False, True):
        actor = load_env_cfg(f"{CARTPOLE}-Student", play=play).observations["actor"]
        assert set(actor.terms) == {"cart_position", "pole_angle"}
        assert actor.enable_corruption
        assert all(term.noise is not None for term in actor.terms.values())
