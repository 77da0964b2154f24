"""MuJoCo Playground: the example's environment, and its trainings."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("mujoco_playground", reason="Playground has an environment of its own")

EXAMPLE = Path(__file__).parents[2] / "examples" / "playground"
NUM_ENVS = 8


@pytest.fixture(scope="module")
def my_task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("playground")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        yield pytest.importorskip("my_task")


@pytest.fixture(scope="module")
def env(my_task):
    return my_task.make(NUM_ENVS, seed=0, device="cpu")


def test_a_done_environment_starts_again_and_gives_its_last_observations(env):
    first = env.reset()
    kept = first.clone()
    env.episode_length_buf = env.max_episode_length - 1 - torch.arange(NUM_ENVS)
    for ended in torch.eye(NUM_ENVS, dtype=torch.bool)[:3]:
        obs, _, dones, extras = env.step(torch.zeros(NUM_ENVS, 1))
        assert torch.equal(dones.bool(), ended)
        assert torch.equal(extras["time_outs"].bool(), ended)
        assert torch.equal(env.episode_length_buf == 0, ended)
        for group, values in kept.items():
            assert torch.equal((obs[group] == values).all(dim=1), ended), group
            went_on = (obs[group] == extras["final_obs"][group]).all(dim=1)
            assert torch.equal(went_on, ~ended), group
            assert torch.equal(env.get_observations()[group], obs[group])
        obs["state"].fill_(9.0)  # changes no episode
        first["state"].fill_(9.0)
    assert torch.equal(env.reset()["state"], kept["state"])


def test_each_policy_continues_from_the_one_before(my_task, env, monkeypatch):
    monkeypatch.setattr(my_task, "make", lambda num_envs, seed, device: env)
    parameters = {}
    for policy in my_task.POLICIES:
        words = ["my_task.py", policy, "--num-envs", str(NUM_ENVS), "--iterations", "2"]
        monkeypatch.setattr(sys, "argv", words)
        my_task.main()
        parameters[policy] = torch.load(Path("logs", policy, "model_1.pt"), weights_only=True)
    teacher, student, finetuned = (parameters[name] for name in ("teacher", "student", "finetune"))
    for state, other in (
        (student["teacher_state_dict"], teacher["actor_state_dict"]),
        # The critic is trained alone at first.
        (finetuned["actor_state_dict"], student["student_state_dict"]),
    ):
        weights = [name for name in state if name.startswith(("mlp", "rnn"))]
        assert weights
        assert all(torch.equal(state[name], other[name]) for name in weights)
