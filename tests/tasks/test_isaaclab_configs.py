"""Registration, agents and assets of the Isaac Lab tasks; no simulator runs here."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")

import gymnasium as gym
from isaaclab.utils import to_dict
from isaaclab_tasks.utils import resolve_task_config
from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry
from rsl_rl.utils import resolve_class

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.algorithms.options import PpoOptions

# From Isaac Lab's own velocity configs and modules, when they are imported and built.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'RigidBodyMaterialCfg' is deprecated:DeprecationWarning"),
]

for entry_point in entry_points(group="isaaclab.tasks"):
    entry_point.load()

CARTPOLE, CAMERA = "Tbptt-Cartpole-Occluded", "Tbptt-Cartpole-Camera"
VELOCITY = [
    "Tbptt-Velocity-Flat-Anymal-D",
    "Tbptt-Velocity-Flat-Unitree-Go2",
    "Tbptt-Velocity-Rough-Anymal-D",
    "Tbptt-Velocity-Rough-Unitree-Go2",
]
SCAN = [f"{task}-Scan" for task in VELOCITY if "Rough" in task]
TASKS = [CARTPOLE, CAMERA, *VELOCITY, *SCAN]
ENV, TEACHER = "env_cfg_entry_point", "rsl_rl_cfg_entry_point"
STUDENTS = {
    "rsl_rl_distillation_recurrent_cfg_entry_point": ("RNNModel", "rsl_tbptt.models:CNNRNNModel"),
    "rsl_rl_distillation_cfg_entry_point": ("MLPModel", "CNNModel"),
}
"""Model of a student that sees numbers, and of one that sees images too, by agent."""
RECURRENT_STUDENT = next(iter(STUDENTS))
PPO_WITH_MEMORY = ["rsl_rl_recurrent_cfg_entry_point", "rsl_rl_finetune_cfg_entry_point"]
AGENTS = [TEACHER, *STUDENTS, *PPO_WITH_MEMORY]


def terms(group):
    """Return the names of an observation group's terms that are on."""
    return {name for name, term in to_dict(group).items() if isinstance(term, dict)}


def test_entry_point_registers_exactly_our_tasks():
    assert sorted(TASKS) == sorted(task for task in gym.registry if task.startswith("Tbptt-"))


def test_registration_imports_no_isaaclab():
    code = "import sys, rsl_tbptt_tasks.isaaclab; print([m for m in sys.modules if 'isaac' in m])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "['rsl_tbptt_tasks.isaaclab']"


@pytest.mark.parametrize("key", STUDENTS)
@pytest.mark.parametrize("task", TASKS)
def test_distillation_takes_the_teachers_checkpoint(task, key):
    teacher, student = load_cfg_from_registry(task, TEACHER), load_cfg_from_registry(task, key)
    assert to_dict(student.teacher) == to_dict(teacher.actor)
    assert student.teacher.distribution_cfg is not None
    assert student.obs_groups["teacher"] == teacher.obs_groups["actor"]
    assert student.experiment_name == teacher.experiment_name


@pytest.mark.parametrize(("key", "models"), STUDENTS.items())
@pytest.mark.parametrize("task", TASKS)
def test_students_differ_in_memory_only(task, key, models):
    student = load_cfg_from_registry(task, key)
    assert student.student.class_name == models[task in (CAMERA, *SCAN)]
    assert student.algorithm.class_name == "rsl_tbptt.algorithms:TbpttDistillation"
    other = to_dict(load_cfg_from_registry(task, RECURRENT_STUDENT))
    same = set(other) - {"student", "run_name"}
    assert {name: to_dict(student)[name] for name in same} == {name: other[name] for name in same}


@pytest.mark.parametrize("key", PPO_WITH_MEMORY)
@pytest.mark.parametrize("task", TASKS)
def test_ppo_with_memory_is_blind_and_its_critic_sees_what_the_teacher_sees(task, key):
    teacher, student = (load_cfg_from_registry(task, k) for k in (TEACHER, RECURRENT_STUDENT))
    cfg = load_cfg_from_registry(task, key)
    assert cfg.obs_groups["actor"] == student.obs_groups["student"]
    assert cfg.obs_groups["critic"] == teacher.obs_groups["critic"]
    assert to_dict(cfg.critic) == to_dict(teacher.critic)
    # It continues a distilled student, so everything but the noise is equal.
    networks = to_dict(student.student), to_dict(cfg.actor)
    for network in networks:
        network["distribution_cfg"].pop("init_std")
    assert networks[0] == networks[1]
    assert cfg.experiment_name == teacher.experiment_name
    algorithm, options = resolve_class(to_dict(cfg.algorithm))
    assert algorithm is TbpttPPO
    for name in ("rnd_cfg", "symmetry_cfg", "share_cnn_encoders"):
        options.pop(name)  # taken by rsl_rl before the options are read
    parsed = PpoOptions.parse(options)
    parsed.check_rollout(cfg.num_steps_per_env, recurrent=True)
    parsed.check_training(cfg.num_steps_per_env, 4096, recurrent=True)


@pytest.mark.parametrize("task", TASKS)
def test_agents_groups_exist_in_the_environment(task):
    observations = to_dict(load_cfg_from_registry(task, ENV).observations)
    for key in AGENTS:
        for groups in load_cfg_from_registry(task, key).obs_groups.values():
            assert set(groups) <= set(observations)


@pytest.mark.parametrize("task", [*VELOCITY, *SCAN])
def test_velocity_student_is_proprioceptive_and_noisy_and_its_teacher_is_neither(task):
    observations = load_cfg_from_registry(task, ENV).observations
    assert {"base_lin_vel", "base_mass"} <= terms(observations.teacher)
    assert ("height_scan" in terms(observations.teacher)) == ("Rough" in task)
    assert not observations.teacher.enable_corruption
    hidden = {"base_lin_vel", "base_mass", "height_scan"}
    assert observations.policy.enable_corruption
    assert not terms(observations.policy) & hidden
    assert terms(observations.policy) == terms(observations.teacher) - hidden


def test_the_student_keeps_its_noise_in_play():
    env_cfg, _ = resolve_task_config(
        CARTPOLE, TEACHER, play_mode=True, overrides=["physics=newton_mjwarp"]
    )
    assert env_cfg.observations.policy.enable_corruption
    assert not env_cfg.observations.teacher.enable_corruption
