"""MuJoCo Playground: environments, the example's trainings, and Playground's own command."""

# Playground is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

import importlib
import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("mujoco_playground", reason="Playground has an environment of its own")

import jax
from learning import train_rsl_rl  # first, as it sets flags of XLA
from ml_collections import config_dict
from mujoco_playground import dm_control_suite, wrapper_torch

from rsl_tbptt.tools.commands import cli

ROOT = Path(__file__).parents[2]
NUM_ENVS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the example, where the policies are trained in turn."""
    folder = tmp_path_factory.mktemp("playground")
    shutil.copy(ROOT / "examples" / "playground" / "my_task.py", folder)
    jax.config.update("jax_compilation_cache_dir", str(folder / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    return folder


@pytest.fixture(scope="module")
def my_task(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("my_task")


@pytest.fixture(scope="module")
def made(my_task):
    return my_task.make(NUM_ENVS, seed=0, device="cpu")


@pytest.fixture
def env(made):
    made.reset()
    return made


def let_time_end_in_turn(env):
    """Let the first environment's time end after 1 step, the second's after 2, and so on."""
    env.episode_length_buf = env.max_episode_length - 1 - torch.arange(NUM_ENVS)


def step(env):
    return env.step(torch.zeros(NUM_ENVS, 1))


def test_a_done_environment_starts_again_in_the_same_step(env):
    first = env.reset()
    let_time_end_in_turn(env)
    for ended in torch.eye(NUM_ENVS, dtype=torch.bool)[:3]:
        obs, _, dones, extras = step(env)
        assert torch.equal(dones.bool(), ended)
        assert torch.equal(extras["time_outs"].bool(), ended)
        assert torch.equal(env.episode_length_buf == 0, ended)
        for group, values in first.items():
            assert torch.equal((obs[group] == values).all(dim=1), ended), group
            went_on = (obs[group] == extras["final_obs"][group]).all(dim=1)
            assert torch.equal(went_on, ~ended), group


def test_final_observations_are_those_without_a_reset(env):
    def run(left):
        env.reset()
        env.episode_length_buf = torch.full((NUM_ENVS,), env.max_episode_length - left)
        step(env)
        return step(env)

    obs, _, dones, _ = run(left=3)
    assert not dones.any()
    reset, _, dones, extras = run(left=2)
    assert dones.all()
    for group, values in obs.items():
        assert torch.equal(extras["final_obs"][group], values)
        assert not torch.equal(reset[group], values)


def test_observations_are_read_without_a_reset(env):
    obs, *_ = step(env)
    again = env.get_observations()
    assert {*again.keys()} == {"state", "privileged_state"}
    assert all(torch.equal(again[group], values) for group, values in obs.items())
    assert env.episode_length_buf.tolist() == [1] * NUM_ENVS
    # Why this package has a class of its own:
    theirs = wrapper_torch.RSLRLBraxWrapper.get_observations(env)
    assert not torch.equal(theirs["state"], obs["state"])


def test_writing_into_observations_changes_no_episode(env):
    first = env.reset()
    kept = first.clone()
    for values in first.values():
        values.fill_(9.0)
    assert torch.equal(env.get_observations()["state"], kept["state"])
    assert torch.equal(env.reset()["state"], kept["state"])


@pytest.fixture(scope="module")
def logs(folder, my_task, made):
    """Train all policies of the example for two iterations, in one set of environments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(my_task, "make", lambda num_envs, seed, device: made)
        for policy in my_task.POLICIES:
            words = ["my_task.py", policy, "--num-envs", str(NUM_ENVS), "--iterations", "2"]
            patch.setattr(sys, "argv", words)
            my_task.main()
    return folder / "logs"


def checkpoint(logs, policy):
    return torch.load(logs / policy / "model_1.pt", weights_only=True)


def test_each_policy_continues_from_the_one_before(logs):
    teacher, student, finetuned = (
        checkpoint(logs, policy) for policy in ("teacher", "student", "finetune")
    )
    assert_same(student["teacher_state_dict"], teacher["actor_state_dict"])
    # The critic is trained alone at first.
    assert_same(finetuned["actor_state_dict"], student["student_state_dict"])


def assert_same(state, other):
    assert state.keys() == other.keys()
    weights = [name for name in state if not name.startswith(("obs_normalizer", "distribution"))]
    assert weights
    assert all(torch.equal(state[name], other[name]) for name in weights)


@pytest.mark.parametrize("policy", ["student", "recurrent"])
def test_memory_is_cleared_where_episodes_end(policy, logs, env, my_task):
    cfg, runner_class = my_task.POLICIES[policy]
    runner = runner_class(env, cfg)
    runner.load(logs / policy / "latest")
    obs, algorithm = env.get_observations(), runner.alg
    let_time_end_in_turn(env)
    algorithm.train_mode()
    with torch.inference_mode():
        for _ in range(3):
            obs, rewards, dones, extras = env.step(algorithm.act(obs))
            algorithm.process_env_step(obs, rewards, dones, extras)
            for state in algorithm.get_policy().get_hidden_state():
                assert torch.equal((state == 0).all(dim=(0, 2)), dones.bool())
            assert dones.sum() == 1


def test_the_tools_take_the_checkpoints(logs, folder, monkeypatch):
    monkeypatch.chdir(folder)
    common = ["--checkpoint", "logs/finetune/latest", "--env", "my_task:make"]
    assert cli.main(["evaluate", *common, "--episodes", str(NUM_ENVS)]) == 0
    result = json.loads((logs / "finetune" / "evaluation.json").read_text())
    assert result["ended_by"] == {"time_out": 1.0, "termination": 0.0}
    assert result["mean_length"] == 200
    assert cli.main(["export", *common, "--output", "bundle", "--steps", "4"]) == 0
    robot = json.loads((folder / "bundle" / "policy.json").read_text())["robot"]
    assert robot == {"step_dt": 0.01, "clip_actions": 1.0}


def test_playgrounds_own_command_trains_with_the_file_of_the_page(my_task, tmp_path, monkeypatch):
    # What the page's file replaces is put back afterwards.
    monkeypatch.setattr(train_rsl_rl, "OnPolicyRunner", None)
    monkeypatch.setattr(wrapper_torch, "RSLRLBraxWrapper", None)
    # The command wants a GPU, and one of its own tasks, whose robots have to be downloaded.
    devices = jax.devices
    monkeypatch.setattr(jax, "devices", lambda kind=None: devices(kind and "cpu"))
    task = partial(my_task.OccludedCartpole, swing_up=False, sparse=False)
    monkeypatch.setitem(dm_control_suite._envs, "CartpoleBalance", task)
    monkeypatch.setitem(dm_control_suite._cfgs, "CartpoleBalance", my_task.my_cfg)
    short = config_dict.create(max_iterations=2)
    monkeypatch.setattr(train_rsl_rl, "get_rl_config", lambda name: short)
    # It logs below a fixed folder, out of which this leads.
    suffix = f"/../../..{tmp_path}/run"
    words = f"train.py --env_name CartpoleBalance --num_envs {NUM_ENVS} --device cpu"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--suffix", suffix])
    page = (ROOT / "docs" / "howto" / "playground.md").read_text()
    (code,) = re.findall(r"```python\n# train.py\n(.*?)```", page, flags=re.DOTALL)
    with pytest.raises(SystemExit) as end:
        exec(compile(code, "train.py", "exec"), {})
    assert not end.value.code
    saved = torch.load(tmp_path / "run" / "model_1.pt", weights_only=True)
    assert any("rnn" in name for name in saved["actor_state_dict"])
