"""A resumed training continues with the same bits, if the environment can restore its state.

tests/algorithms/update/test_resumed.py has the algorithms' part, with every option.
"""

import copy
import random
from datetime import date
from typing import Any

import numpy as np
import pytest
import torch
from rsl_rl.utils.logger import Logger
from support.inside import assert_same
from support.process import OPTIONS
from support.safe_runs import NUM_ENVS, STEPS, DisturbedEnv, die, make_runner, names
from torch.utils.tensorboard import SummaryWriter

from rsl_tbptt_tasks.memory import RecallEnv

RND = OPTIONS["ppo"]["rnd_cfg"] | {
    "weight_schedule": {"mode": "linear", "initial_step": 3, "final_step": 27, "final_value": 1.0},
    "state_normalization": True,
    "reward_normalization": True,
}
CASES = {
    "distillation": {"buffer_rollouts": 2, "save_buffer": True, "num_mini_batches": 2},
    "ppo": {"num_mini_batches": 2, "schedule": "adaptive", "rnd_cfg": RND},
}


class Env(DisturbedEnv):
    """Has the interface that RND needs, and pays rewards above 0 at every step."""

    step_dt = 0.02

    @property
    def unwrapped(self):
        return self

    def step(self, actions):
        obs, rewards, dones, extras = super().step(actions)
        return obs, rewards + 0.1 * self._cue.abs() + 0.1 * actions.squeeze(-1), dones, extras


def make(folder, kind="ppo", env=None, save_interval=100, **config):
    """Build a runner that RND rewards, or that has a replay buffer."""
    if kind == "ppo":
        sets = {"critic": ["privileged"], "rnd_state": ["privileged"]}
        config["obs_groups"] = {"actor": ["policy"], **sets}
    options, settings = copy.deepcopy(CASES[kind]), {"save_interval": save_interval, **config}
    return make_runner(folder, kind, algorithm=options, env=env or Env({}), **settings)


def loaded(path, *arguments, **settings):
    """Build a runner in a checkpoint's folder and load it."""
    runner = make(path.parent, *arguments, **settings)
    runner.load(str(path))
    return runner


def numbers_of(runner):
    """Return parameters, normalisers and optimiser, counts of the logger and random numbers."""
    models = {key: value for key, value in runner.alg.save().items() if key.endswith("state_dict")}
    logger, drawn = runner.logger, (random.random(), np.random.rand(), torch.rand(3))
    return models, logger.tot_timesteps, [*logger.rewbuffer], logger.cur_reward_sum, drawn


@pytest.fixture
def logged(monkeypatch):
    """Return the values written for TensorBoard, except times, and where the logger began."""
    scalars, log = [], Logger.log

    def add_scalar(self, tag, value, step):
        if not tag.startswith("Perf/") and not tag.endswith("/time"):
            scalars.append((tag, float(value), step))

    def log_start(self, it, start_it, **values):
        scalars.append(("start", start_it, it))  # rsl_rl divides its time by iterations from there
        log(self, it, start_it, **values)

    monkeypatch.setattr(SummaryWriter, "add_scalar", add_scalar)
    monkeypatch.setattr(Logger, "log", log_start)
    return scalars


@pytest.mark.parametrize("kind", CASES)
def test_a_resumed_training_ends_and_logs_with_the_same_bits(kind, tmp_path, logged):
    def draw_differently(seed):
        random.seed(seed)
        np.random.seed(seed)

    whole = make(tmp_path / "whole", kind)
    draw_differently(0)
    whole.learn(5, init_at_random_ep_len=True)
    expected, numbers = logged.copy(), numbers_of(whole)
    logged.clear()
    stopped = make(tmp_path / "parts", kind)
    draw_differently(0)
    stopped.learn(2, init_at_random_ep_len=True)
    draw_differently(1)
    resumed = loaded(tmp_path / "parts" / "latest", kind, env=Env({}, seed=9))
    resumed.learn(3, init_at_random_ep_len=True)
    assert_same(numbers_of(resumed), numbers)
    assert logged == expected


def test_a_checkpoint_of_an_older_release_can_be_resumed(tmp_path):
    make(tmp_path, num_steps_per_env=3).learn(3)
    path = tmp_path / "model_2.pt"
    file = torch.load(path, weights_only=True)
    resume = file["rsl_tbptt_runner"].pop("resume")
    file["rsl_tbptt_runner"]["resume_of_ranks"] = [resume]  # of one rank, as others'
    del resume["generators"]["python"]
    resume["hidden_states"] = {"teacher": torch.ones(1, 4, 24)}
    for name in ("erewbuffer", "irewbuffer", "cur_ereward_sum", "cur_ireward_sum"):
        del resume["episodes"][name]
    resume["environment"]["episode_length"].zero_()
    torch.save(file, path)
    resumed, generator = loaded(path, num_steps_per_env=3), random.getstate()
    resumed.learn(1)  # no episode ends; rsl_rl logs all means or none
    assert random.getstate() == generator
    assert len(resumed.logger.rewbuffer) == len(resumed.logger.erewbuffer) == 0


def test_a_state_that_could_not_be_loaded_again_is_refused_at_the_first_save(tmp_path):
    env = Env({})
    env.state_dict = lambda: {"level": np.zeros(3)}
    with pytest.raises(ValueError, match=r"env\.state_dict\(\) holds a ndarray, expected tensors"):
        make_runner(tmp_path, env=env).learn(1)
    with pytest.raises(ValueError, match="infos holds a date, expected tensors and plain"):
        make_runner().save(str(tmp_path / "model.pt"), infos={"day": date(2026, 1, 1)})


def test_saving_what_was_loaded_keeps_the_state_to_resume_and_infos_with_numpys_numbers(tmp_path):
    runner, copied = make_runner(tmp_path), make_runner()
    runner.learn(2)
    copied.logger.writer = None  # which rsl_rl 5.0 lacks before a training
    copied.load(str(tmp_path / "latest"))
    infos = {"score": np.float64(1.5), "done": np.bool_(True), "level": torch.ones(2)}
    copied.save(str(tmp_path / "copy.pt"), infos)
    one, other = (
        torch.load(tmp_path / name, weights_only=True)["rsl_tbptt_runner"]
        for name in ("model_1.pt", "copy.pt")
    )
    assert_same(other, one)
    assert one["num_iterations"] == 2
    assert_same(make_runner().load(str(tmp_path / "copy.pt")), infos)


def simulator():
    """Return an environment that cannot restore its state."""
    absent: dict[str, Any] = {"state_dict": property(), "load_state_dict": property()}
    return type("Simulator", (RecallEnv,), absent)(NUM_ENVS, 3)


def test_without_a_restored_environment_hidden_states_start_empty(tmp_path):
    make_runner(tmp_path, env=simulator()).learn(2)
    file = torch.load(tmp_path / "model_1.pt", weights_only=True)
    assert file["rsl_tbptt_runner"]["resume"].keys() == {"generators", "counters"}
    resumed = make_runner(tmp_path, env=simulator())
    resumed.load(str(tmp_path / "latest"))
    resumed.alg.train_mode = lambda: states.append(resumed.alg.student.get_hidden_state())
    states = []
    resumed.learn(1)
    assert states == [None]
    assert resumed.logger.tot_timesteps == 3 * STEPS * NUM_ENVS


def test_a_teachers_checkpoint_resumes_nothing(tmp_path):
    make_runner(tmp_path, "ppo").learn(1)
    student = make_runner()
    file = torch.load(tmp_path / "model_0.pt", weights_only=True)
    del file["rsl_tbptt"]  # it records the actor's groups, as does its folder's config
    path = tmp_path / "elsewhere" / "model_9.pt"
    path.parent.mkdir()
    torch.save({**file, "actor_state_dict": student.alg.teacher.state_dict()}, path)
    student.load(str(path))
    assert (student.num_iterations, student._resumed) == (0, None)


def test_iterations_before_a_failed_step_are_kept_as_they_were(tmp_path):
    make(tmp_path / "whole").learn(3)
    broken = make(tmp_path / "run", env=Env({3 * STEPS + 4: die}))
    with pytest.raises(RuntimeError, match="the simulator died"):
        broken.learn(6)
    assert (broken.num_iterations, broken.current_learning_iteration) == (3, 2)
    assert names(tmp_path / "run") == ["model_0.pt", "model_2.pt"]
    one, other = (
        torch.load(tmp_path / folder / "model_2.pt", weights_only=True)
        for folder in ("whole", "run")
    )
    for key in ("actor_state_dict", "optimizer_state_dict", "rnd_state_dict"):
        assert_same(other[key], one[key])
    assert_same(other["rsl_tbptt"]["rnd"], one["rsl_tbptt"]["rnd"])
    # Half a rollout was taken. Its episodes and random numbers are not continued.
    resumed = loaded(tmp_path / "run" / "latest")
    assert resumed._resumed.keys() == {"counters", "rnd"}
    resumed.learn(1)
    assert resumed.logger.tot_timesteps == 4 * STEPS * NUM_ENVS


@pytest.mark.parametrize(("kind", "num_envs"), [("distillation", NUM_ENVS - 2), ("ppo", 7)])
def test_another_number_of_environments_starts_new_episodes(kind, num_envs, tmp_path):
    make(tmp_path, kind).learn(3)
    resumed = loaded(tmp_path / "latest", kind, env=Env({}, num_envs=num_envs))
    at_first, at_rollout, train_mode = resumed.env.state_dict(), [], resumed.alg.train_mode
    resumed.alg.train_mode = lambda: (at_rollout.append(resumed.env.state_dict()), train_mode())
    told = f"written with {NUM_ENVS} environments and goes on with {num_envs}: hidden states and"
    with pytest.warns(UserWarning, match=told):
        resumed.learn(2)
    assert_same(at_rollout, [at_first])
    assert resumed.num_iterations == 5
    assert resumed.logger.tot_timesteps == STEPS * (3 * NUM_ENVS + 2 * num_envs)


def test_loading_and_an_environment_that_refuses_its_state_leave_the_rest_unchanged(tmp_path):
    def refuse(_):
        raise ValueError("recall_length is 4, expected 3.")

    def generators():
        return random.getstate(), np.random.get_state(), torch.get_rng_state()

    make(tmp_path).learn(2)
    resumed, before = make(tmp_path), generators()
    resumed.load(str(tmp_path / "latest"))
    resumed.env.load_state_dict = refuse
    with pytest.raises(ValueError, match="recall_length is 4"):
        resumed.learn(1)
    assert_same(generators(), before)
    assert (resumed.logger.tot_timesteps, len(resumed.logger.rewbuffer)) == (0, 0)
    assert resumed.alg.actor.get_hidden_state() is None
