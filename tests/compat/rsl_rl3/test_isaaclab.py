"""Isaac Lab 2.3's own config classes, vec-env wrapper, exporter and rsl_rl's stock runners."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
import torch

from support import isaaclab2_stubs  # isort: skip  before Isaac Lab
from isaaclab_rl.rsl_rl import (
    RslRlDistillationAlgorithmCfg,
    RslRlDistillationRunnerCfg,
    RslRlDistillationStudentTeacherRecurrentCfg,
    RslRlOnPolicyRunnerCfg,
    RslRlPpoActorCriticCfg,
    RslRlPpoActorCriticRecurrentCfg,
    RslRlPpoAlgorithmCfg,
    RslRlVecEnvWrapper,
    export_policy_as_jit,
)
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.gpu_checkpoints import as_on_a_gpu, check_refused, without_gpu

from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from rsl_tbptt.integrations.isaaclab import TbpttDistillationAlgorithmCfg, TbpttPpoAlgorithmCfg
from rsl_tbptt_tasks.memory import RecallEnv

pytestmark = pytest.mark.filterwarnings(
    "ignore:Time-outs are bootstrapped with the value",
    "ignore:builtin type Swig:DeprecationWarning",
)

NUM_ENVS = 16
LAYERS = {"activation": "elu", "init_noise_std": 0.2}
MEMORY = {"rnn_type": "lstm", "rnn_hidden_dim": 16, "rnn_num_layers": 1}
RUN = {"device": "cpu", "num_steps_per_env": 8, "save_interval": 100, "experiment_name": "recall"}


class RecallInIsaacLab(isaaclab2_stubs.DirectRLEnv):
    """The recall task behind the interface of a direct environment that the wrapper needs."""

    cfg = SimpleNamespace(is_finite_horizon=False)
    single_action_space = gymnasium.spaces.Box(-1, 1, (1,))
    device = "cpu"
    common_step_counter = 0

    def __init__(self):
        self._task = RecallEnv(NUM_ENVS, recall_length=3)
        self.num_envs, self.unwrapped = NUM_ENVS, self
        self.max_episode_length = self._task.max_episode_length
        self.episode_length_buf = self._task.episode_length_buf

    def _get_observations(self):
        return dict(self._task.get_observations())

    def reset(self):
        return self._get_observations(), {}

    def step(self, actions):
        self.common_step_counter += 1
        _, rewards, dones, _ = self._task.step(actions)
        truncated = dones.bool()
        return self._get_observations(), rewards, torch.zeros_like(truncated), truncated, {}


def ppo_cfg(policy_class, seen, *, normalizes, memory, **algorithm):
    hidden: dict[str, Any] = {f"{role}_hidden_dims": [16] for role in ("actor", "critic")}
    normalized = {f"{role}_obs_normalization": normalizes for role in ("actor", "critic")}
    return RslRlOnPolicyRunnerCfg(
        **RUN,
        max_iterations=4,
        obs_groups={"policy": [seen], "critic": ["privileged"]},
        policy=policy_class(**LAYERS, **memory, **hidden, **normalized),
        algorithm=TbpttPpoAlgorithmCfg(**algorithm),
    )


def teacher_cfg():
    return ppo_cfg(RslRlPpoActorCriticCfg, "privileged", normalizes=True, memory={})


def fine_tuning_cfg():
    options = {"gradient_length": 4, "student_action_std": 0.3}
    policy_class = RslRlPpoActorCriticRecurrentCfg
    return ppo_cfg(policy_class, "policy", normalizes=False, memory=MEMORY, **options)


def student_cfg(**algorithm):
    return RslRlDistillationRunnerCfg(
        **RUN,
        max_iterations=20,
        obs_groups={"policy": ["policy"], "teacher": ["privileged"]},
        policy=RslRlDistillationStudentTeacherRecurrentCfg(
            **LAYERS,
            **MEMORY,
            student_hidden_dims=[16],
            teacher_hidden_dims=[16],
            student_obs_normalization=False,
            teacher_obs_normalization=True,
            teacher_recurrent=False,
        ),
        algorithm=TbpttDistillationAlgorithmCfg(gradient_length=4, learning_rate=1e-2, **algorithm),
    )


def make_runner(cfg, log_dir):
    """Build the runner as Isaac Lab 2.3's train.py does."""
    torch.manual_seed(0)
    runner_class = {"OnPolicyRunner": OnPolicyRunner, "DistillationRunner": DistillationRunner}
    recall: Any = RecallInIsaacLab()
    env = RslRlVecEnvWrapper(recall, clip_actions=cfg.clip_actions)
    runner = runner_class[cfg.class_name](env, cfg.to_dict(), str(log_dir), cfg.device)
    runner.git_status_repos = []  # it would store the state of the repository around it
    return runner


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A teacher, its recurrent student, and PPO that continues with the student."""
    folder = tmp_path_factory.mktemp("logs")
    teacher = make_runner(teacher_cfg(), folder / "teacher")
    teacher.learn(4)
    checkpoint = str(folder / "teacher" / "model_3.pt")
    student = make_runner(student_cfg(teacher_checkpoint=checkpoint), folder / "student")
    losses, update = [], student.alg.update
    student.alg.update = lambda: losses.append(metrics := update()) or metrics
    student.learn(20)
    tuned = make_runner(fine_tuning_cfg(), folder / "tuned")
    tuned.load(str(folder / "student" / "model_19.pt"))
    tuned.learn(2)
    return SimpleNamespace(teacher=teacher, student=student, losses=losses, folder=folder)


@without_gpu
def test_a_gpus_checkpoints_are_loaded_on_a_cpu(runs, tmp_path):
    for name, iteration, cfg in (
        ("teacher", 3, student_cfg()),
        ("student", 19, student_cfg()),
        ("student", 19, fine_tuning_cfg()),
        ("tuned", 20, fine_tuning_cfg()),
    ):
        path = runs.folder / name / f"model_{iteration}.pt"
        checkpoint = torch.load(path, weights_only=True)
        with as_on_a_gpu():
            torch.save(checkpoint, tmp_path / path.name)
        check_refused(tmp_path / path.name)
        runner = make_runner(cfg, tmp_path / f"{name} {cfg.class_name}")
        runner.load(str(tmp_path / path.name))
        runner.learn(1)


STEPS = RUN["num_steps_per_env"]


def stage_after(cfg, checkpoint, folder):
    """Train for an iteration after a checkpoint; return how many steps had been counted before."""
    runner = make_runner(cfg, folder)
    if checkpoint:
        runner.load(str(checkpoint))
    runner.learn(1)
    return runner.env.unwrapped.common_step_counter - STEPS


def test_curricula_that_count_steps_go_on(runs, tmp_path):
    names = ("teacher/model_3.pt", "student/model_19.pt", "tuned/model_20.pt")
    teacher, student, tuned = (runs.folder / name for name in names)
    naming = student_cfg(teacher_checkpoint=str(teacher))
    assert stage_after(naming, None, tmp_path / "named") == 4 * STEPS
    assert stage_after(student_cfg(), teacher, tmp_path / "loaded") == 4 * STEPS
    assert stage_after(fine_tuning_cfg(), student, tmp_path / "tuned") == (4 + 20) * STEPS
    assert stage_after(student_cfg(), student, tmp_path / "resumed") == (4 + 20) * STEPS
    assert stage_after(fine_tuning_cfg(), tuned, tmp_path / "tuned more") == (4 + 20 + 2) * STEPS


def test_the_student_learns_from_a_teacher_loaded_without_resume(runs):
    teacher, policy = runs.teacher.alg.policy, runs.student.alg.policy
    assert torch.equal(policy.teacher[0].weight, teacher.actor[0].weight)
    assert torch.equal(policy.teacher_obs_normalizer._mean, teacher.actor_obs_normalizer._mean)
    first, *_, last = runs.losses
    assert last["behavior"] < 0.5 * first["behavior"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_play_builds_and_exports_the_student(runs, tmp_path):
    runner = make_runner(student_cfg(), tmp_path)
    runner.load(str(runs.folder / "student" / "model_19.pt"))
    policy = runner.get_inference_policy()
    export_policy_as_jit(
        runner.alg.policy, runner.alg.policy.student_obs_normalizer, str(tmp_path), "policy.pt"
    )
    exported = torch.jit.load(tmp_path / "policy.pt")
    with torch.inference_mode():
        for _ in range(3):
            obs = runner.env.get_observations()[:1]
            torch.testing.assert_close(exported(obs["policy"]), policy(obs))


@pytest.mark.parametrize(
    ("ours", "stock", "options"),
    [
        (TbpttDistillationAlgorithmCfg, RslRlDistillationAlgorithmCfg, DistillationOptions),
        (TbpttPpoAlgorithmCfg, RslRlPpoAlgorithmCfg, PpoOptions),
    ],
)
def test_the_config_is_where_isaac_lab_has_its_own(ours, stock, options):
    cfg = ours()
    assert isinstance(cfg, stock)
    arguments = cfg.to_dict()
    assert {field.name for field in dataclasses.fields(stock)} <= arguments.keys()
    del arguments["class_name"]
    for taken_by_rsl_rl in ("rnd_cfg", "symmetry_cfg"):
        arguments.pop(taken_by_rsl_rl, None)
    assert options.parse(arguments) == options()
