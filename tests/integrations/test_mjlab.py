"""mjlab: config classes, the algorithms' arguments, and the runners on a small environment."""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

import mjlab
import tyro
from mjlab.rl import RslRlModelCfg, RslRlPpoAlgorithmCfg
from rsl_rl.utils import resolve_callable
from support.gpu_checkpoints import as_on_a_gpu, check_refused, without_gpu
from support.mjlab_page import build_package

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.options import DistillationOptions, PpoOptions
from rsl_tbptt.integrations.mjlab import (
    EpisodicPolicy,
    TbpttControllerCfg,
    TbpttDistillationAlgorithmCfg,
    TbpttDistillationRunnerCfg,
    TbpttMjlabDistillationRunner,
    TbpttMjlabRecurrentRunner,
    TbpttPpoAlgorithmCfg,
    model_arguments,
)
from rsl_tbptt_tasks.memory import RecallEnv
from scripts.option_tables import docstrings

TAKEN_BY_RSL_RL = {"class_name", "share_cnn_encoders"}
"""Fields that rsl_rl reads before the options are built."""


def options_of(cfg):
    return {k: v for k, v in dataclasses.asdict(cfg).items() if k not in TAKEN_BY_RSL_RL}


@pytest.mark.parametrize(
    ("cfg", "algorithm", "options"),
    [
        (TbpttDistillationAlgorithmCfg(), TbpttDistillation, DistillationOptions),
        (TbpttPpoAlgorithmCfg(), TbpttPPO, PpoOptions),
    ],
)
def test_fields_and_defaults_are_the_algorithms_own(cfg, algorithm, options):
    assert resolve_callable(cfg.class_name) is algorithm
    assert options.parse(options_of(cfg)) == options()
    names = {field.name for field in dataclasses.fields(options)}
    assert names == options_of(cfg).keys()


@pytest.mark.parametrize("cls", [TbpttDistillationAlgorithmCfg, TbpttPpoAlgorithmCfg])
def test_the_command_line_has_every_option_with_its_meaning(cls, capsys):
    with pytest.raises(SystemExit):
        tyro.cli(cls, args=["--help"], config=mjlab.TYRO_FLAGS)
    page = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for field in dataclasses.fields(cls):
        if field.name in (
            "teacher_cfg",
            "auxiliary",
            "extensions",
        ):  # dictionaries, set in the config
            continue
        option = f"--{field.name.replace('_', '-')} "
        assert option in page, field.name
        meaning = docstrings(cls)[field.name].split("\n\n")[0]
        assert " ".join(meaning.split()) in page.split(option, 1)[1], field.name


@pytest.mark.long
@pytest.mark.parametrize("module", ["rsl_tbptt.integrations.mjlab", "rsl_tbptt_tasks.mjlab"])
def test_tasks_are_registered_in_any_order_of_imports(module, tmp_path):
    code = f"import {module}; from mjlab.tasks.registry import list_tasks; print(*list_tasks())"
    wheel = build_package(tmp_path / "package")
    path = os.pathsep.join([str(wheel), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Failed to load" not in result.stderr, result.stderr
    assert {"Tbptt-Cartpole-Occluded-Student", "my_task-Student"} <= set(result.stdout.split())


def test_options_that_a_model_does_not_have_are_left_out():
    cfg = dataclasses.asdict(RslRlModelCfg())
    left_out = {"cnn_cfg", "distribution_cfg", "rnn_type", "rnn_hidden_dim", "rnn_num_layers"}
    assert cfg.keys() - model_arguments(cfg).keys() == left_out
    given = {"cnn_cfg": {}, "distribution_cfg": {}, "rnn_type": "gru"}
    assert model_arguments({**cfg, **given}).keys() == cfg.keys()


SAMPLES = {"distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.3}}


class MjlabRecall(RecallEnv):
    """A pure torch environment with the interface that mjlab's runner needs."""

    common_step_counter = 7

    @property
    def unwrapped(self):
        return self


class CountingRecall(MjlabRecall):
    """An environment that counts its steps, as mjlab's do."""

    def step(self, actions):
        self.common_step_counter += 1
        return super().step(actions)


def runner_cfg(**changes):
    cfg = TbpttDistillationRunnerCfg(
        logger="tensorboard",
        num_steps_per_env=12,
        obs_groups={"student": ("policy",), "teacher": ("privileged",)},
        algorithm=TbpttDistillationAlgorithmCfg(gradient_length=4),
        **changes,
    )
    cfg.student.rnn_hidden_dim, cfg.student.hidden_dims = 8, (8,)
    return cfg


def of_command_line(default, *words):
    return tyro.cli(type(default), default=default, args=words, config=mjlab.TYRO_FLAGS)


def distillation_cfg(**options):
    cfg = dataclasses.asdict(runner_cfg(teacher=RslRlModelCfg(hidden_dims=(8,), **SAMPLES)))
    cfg["algorithm"].update(options)
    return cfg


def ppo_cfg():
    cfg = distillation_cfg()
    actor, critic = cfg.pop("student"), {**cfg.pop("teacher"), "distribution_cfg": None}
    algorithm = dataclasses.asdict(TbpttPpoAlgorithmCfg(student_action_std=0.3))
    groups = {"actor": ("policy",), "critic": ("privileged",)}
    return {**cfg, "obs_groups": groups, "actor": actor, "critic": critic, "algorithm": algorithm}


@pytest.fixture
def env():
    torch.manual_seed(0)
    return MjlabRecall(num_envs=6, recall_length=4)


@pytest.fixture
def runner(env):
    runner = TbpttMjlabDistillationRunner(env, distillation_cfg())
    runner.alg.teacher_loaded = True
    return runner


def test_without_a_teacher_training_is_refused(env):
    runner = TbpttMjlabDistillationRunner(env, distillation_cfg())
    with pytest.raises(ValueError, match=r"--agent\.algorithm\.teacher-checkpoint FILE"):
        runner.learn(1)


def saved(runner, tmp_path):
    runner.cfg["upload_model"] = False
    path = str(tmp_path / "model_3.pt")
    runner.current_learning_iteration = 3
    runner.save(path)
    return path


def parameters(model):
    return torch.cat([parameter.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("resumed", [True, False])
def test_resumed_training_gets_everything_and_play_the_student(runner, env, tmp_path, resumed):
    path = saved(runner, tmp_path)
    env.common_step_counter = 0
    other = TbpttMjlabDistillationRunner(env, distillation_cfg())
    assert not torch.equal(parameters(other.alg.student), parameters(runner.alg.student))
    other.load(path, **({} if resumed else {"load_cfg": {"actor": True}, "strict": True}))
    assert torch.equal(parameters(other.alg.student), parameters(runner.alg.student))
    same_teacher = torch.equal(parameters(other.alg.teacher), parameters(runner.alg.teacher))
    assert same_teacher == resumed
    assert not resumed or other.alg.teacher_loaded
    assert other.current_learning_iteration == (3 if resumed else 0)
    assert env.common_step_counter == 7 or not resumed


def first_steps(runner, path):
    """Train for an iteration after a checkpoint; return the counter before it."""
    if path is not None:
        runner.load(path)
    runner.learn(1)
    return runner.env.common_step_counter - runner.cfg["num_steps_per_env"]


@pytest.mark.parametrize("loads", [True, False], ids=["agent.resume", "teacher_checkpoint"])
def test_a_student_begins_at_its_teachers_stage(tmp_path, loads):
    cfg = ppo_cfg()
    cfg["obs_groups"] = {"actor": ("privileged",), "critic": ("privileged",)}
    cfg["actor"] = distillation_cfg()["teacher"]
    cfg["algorithm"] = dataclasses.asdict(RslRlPpoAlgorithmCfg())
    teacher = saved(TbpttMjlabRecurrentRunner(CountingRecall(6, 4), cfg), tmp_path)
    env = CountingRecall(6, 4)
    env.common_step_counter = 0
    runner = TbpttMjlabDistillationRunner(
        env, distillation_cfg(teacher_checkpoint=None if loads else teacher)
    )
    assert first_steps(runner, teacher if loads else None) == 7
    student = saved(runner, tmp_path)
    ppo = TbpttMjlabRecurrentRunner(CountingRecall(6, 4), ppo_cfg())
    assert first_steps(ppo, student) == 7 + 12


@without_gpu
def test_a_gpus_checkpoint_is_loaded_on_a_cpu(runner, env, tmp_path):
    with as_on_a_gpu():
        path = saved(runner, tmp_path)
    check_refused(path)
    ppo = TbpttMjlabRecurrentRunner(env, ppo_cfg())
    for each in (ppo, runner):
        each.load(path)  # mjlab's ``train`` names no device


def test_the_memory_of_a_policy_is_cleared_where_an_episode_starts(runner, env):
    policy = runner.get_inference_policy("cpu")
    assert isinstance(policy, EpisodicPolicy)
    obs = env.get_observations()
    with torch.no_grad():
        env.episode_length_buf[:] = 5
        first = policy(obs)
        env.episode_length_buf[:3] = 0
        second = policy(obs)
    torch.testing.assert_close(second[:3], first[:3])
    assert not torch.isclose(second[3:], first[3:]).any(dim=-1).all()


@dataclasses.dataclass
class PlaybackCfg(TbpttControllerCfg):
    """A controller with an argument."""

    actions: tuple[float, ...] = (0.1,)


def test_a_controller_of_the_command_line_reaches_the_runner():
    words = ["--teacher.class-name", "support.controllers:Playback", "--teacher.actions", "(0.7,)"]
    cfg = of_command_line(runner_cfg(teacher=PlaybackCfg("none")), *words)
    runner = TbpttMjlabDistillationRunner(MjlabRecall(6, 4), dataclasses.asdict(cfg))
    runner.learn(1)
    (playback,) = runner.alg.teacher._controller
    assert playback.recording[0] == pytest.approx(0.7)
