"""A resumed training continues with the same bits, if the environment can restore its state."""

import copy
import random
from datetime import date
from typing import Any

import numpy as np
import pytest
import torch
from rsl_rl.utils.logger import Logger
from support.safe_runs import NUM_ENVS, assert_same, make_runner, model_cfg
from torch.utils.tensorboard import SummaryWriter

from rsl_tbptt_tasks.memory import RecallEnv

RND = {
    "weight": 5.0,
    "weight_schedule": {"mode": "linear", "initial_step": 3, "final_step": 27, "final_value": 1.0},
    "num_outputs": 3,
    "predictor_hidden_dims": [8],
    "target_hidden_dims": [8],
    "state_normalization": True,
    "reward_normalization": True,
}


CASES = {
    "with a replay buffer": (
        "distillation",
        {"buffer_rollouts": 2, "save_buffer": True, "num_mini_batches": 2},
    ),
    "rnd": ("ppo", {"num_mini_batches": 2, "schedule": "adaptive", "rnd_cfg": RND}),
    "several recurrent teachers": ("distillation", {"buffer_rollouts": 0}),
}
"""Kind and options; tests/algorithms resumes the algorithms themselves, with every option."""


def is_asked(obs):
    """Select the second teacher where the cue is asked for."""
    return obs["policy"][:, 1]


SEVERAL = {
    "class_name": "rsl_tbptt.models:SelectedTeachers",
    "selector": is_asked,
    "teachers": {
        "tell": {"cfg": model_cfg("MLPModel")},
        "guess": {"cfg": model_cfg("RNNModel"), "obs_groups": ["policy"]},
        "hum": {"cfg": model_cfg("RNNModel", rnn_type="gru"), "obs_groups": ["policy"]},
    },
}


class Env(RecallEnv):
    """Has the interface that RND needs, and pays rewards above 0 at every step."""

    step_dt = 0.02

    def __init__(self, seed=0, num_envs=NUM_ENVS):
        super().__init__(num_envs, 3, seed=seed)

    @property
    def unwrapped(self):
        return self

    def step(self, actions):
        obs, rewards, dones, extras = super().step(actions)
        return obs, rewards + 0.1 * self._cue.abs() + 0.1 * actions.squeeze(-1), dones, extras


def make(tmp_path, folder, case, **arguments):
    """Build the runner of a case in a new folder."""
    kind, options = CASES[case]
    options = copy.deepcopy(options)
    if case == "several recurrent teachers":
        arguments["teacher"] = copy.deepcopy(SEVERAL)
    if kind == "ppo":
        sets = {"critic": ["privileged"], "rnd_state": ["privileged"]}
        arguments["obs_groups"] = {"actor": ["policy"], **sets}
    runner = make_runner(
        folder and tmp_path / folder,
        kind,
        algorithm=options,
        **{"env": Env(), "save_interval": 100} | arguments,
    )
    if case == "several recurrent teachers":
        runner.alg.lazy_teacher.is_loaded = runner.alg.teacher.is_read = True
    return runner


def numbers_of(runner):
    """Return parameters, normalisers and optimiser, and the counts of the logger."""
    models = {key: value for key, value in runner.alg.save().items() if key.endswith("state_dict")}
    logger = runner.logger
    return models, logger.tot_timesteps, [*logger.rewbuffer], logger.cur_reward_sum


@pytest.fixture
def logged(monkeypatch):
    """Return the values written for TensorBoard, except times."""
    scalars = []

    def add_scalar(self, tag, value, step):
        if not tag.startswith("Perf/") and not tag.endswith("/time"):
            scalars.append((tag, float(value), step))

    monkeypatch.setattr(SummaryWriter, "add_scalar", add_scalar)
    return scalars


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_ends_and_logs_with_the_same_bits(case, tmp_path, logged):
    whole = make(tmp_path, "whole", case)
    whole.learn(5, init_at_random_ep_len=True)
    expected = logged.copy()
    logged.clear()
    make(tmp_path, "parts", case).learn(2, init_at_random_ep_len=True)
    torch.rand(7)
    resumed = make(tmp_path, "parts", case, env=Env(seed=9))
    resumed.load(str(tmp_path / "parts" / "latest"))
    resumed.learn(3, init_at_random_ep_len=True)
    assert_same(numbers_of(resumed), numbers_of(whole))
    assert logged == expected


def test_generators_continue_when_training_starts_and_not_when_a_file_is_loaded(tmp_path):
    runner = make_runner(tmp_path)
    runner.learn(1)

    def draw():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()

    expected = draw()
    resumed = make_runner(tmp_path)
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    resumed.load(str(tmp_path / "latest"))
    assert all(drawn != other for drawn, other in zip(draw(), expected, strict=True))
    seen = []
    resumed.alg.train_mode = lambda: seen.append(draw())
    resumed.learn(1)
    assert seen == [expected]


def test_a_checkpoint_of_an_older_release_can_be_resumed(tmp_path):
    case = "several recurrent teachers"
    make(tmp_path, "run", case).learn(1)
    path = tmp_path / "run" / "model_0.pt"
    file = torch.load(path, weights_only=True)
    resume = file["rsl_tbptt_runner"].pop("resume")
    file["rsl_tbptt_runner"]["resume_of_ranks"] = [resume]  # of one rank, as others'
    del resume["generators"]["python"]
    states = resume["hidden_states"]
    resume["hidden_states"] = {"student": states["student"], "teacher": torch.ones(1, 4, 24)}
    torch.save(file, path)
    resumed = make(tmp_path, "run", case)
    resumed.load(str(path))
    generator = random.getstate()
    resumed.learn(1)
    assert random.getstate() == generator


def test_a_state_that_could_not_be_loaded_again_is_refused_at_the_first_save(tmp_path):
    env = Env()
    env.state_dict = lambda: {"level": np.zeros(3)}
    runner = make_runner(tmp_path, env=env)
    with pytest.raises(ValueError, match=r"env\.state_dict\(\) holds a ndarray, expected tensors"):
        runner.learn(1)
    with pytest.raises(ValueError, match="infos holds a date, expected tensors and plain"):
        make_runner().save(str(tmp_path / "model.pt"), infos={"day": date(2026, 1, 1)})


def test_infos_with_numpys_numbers_can_be_loaded_again(tmp_path):
    runner = make_runner()
    runner.logger.writer = None  # which rsl_rl 5.0 lacks before a training
    infos = {"score": np.float64(1.5), "done": np.bool_(True), "level": torch.ones(2)}
    runner.save(str(tmp_path / "model_0.pt"), infos)
    assert_same(make_runner().load(str(tmp_path / "model_0.pt")), infos)


def test_saving_what_was_loaded_keeps_the_state_to_resume(tmp_path):
    make_runner(tmp_path).learn(2)
    copied = make_runner()
    copied.logger.writer = None  # as above
    copied.load(str(tmp_path / "latest"))
    copied.save(str(tmp_path / "copy.pt"))
    one, other = (
        torch.load(tmp_path / name, weights_only=True)["rsl_tbptt_runner"]
        for name in ("model_1.pt", "copy.pt")
    )
    assert_same(other, one)
    assert one["num_iterations"] == 2


def test_the_remaining_time_counts_the_iterations_before_a_resume(tmp_path, monkeypatch):
    starts, log = [], Logger.log

    def noted(self, it, start_it, **values):
        starts.append(start_it)
        log(self, it, start_it, **values)

    make_runner(tmp_path).learn(2)
    monkeypatch.setattr(Logger, "log", noted)
    resumed = make_runner(tmp_path)
    resumed.load(str(tmp_path / "latest"))
    resumed.learn(2)
    assert starts == [0, 0]  # rsl_rl divides the time of all iterations by those from here on


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
    assert resumed.logger.tot_timesteps == 3 * 6 * NUM_ENVS


def test_a_teachers_checkpoint_resumes_nothing(tmp_path):
    make_runner(tmp_path, "ppo").learn(1)
    student = make_runner()
    teacher = student.alg.teacher.state_dict()
    file = torch.load(tmp_path / "model_0.pt", weights_only=True)
    del file["rsl_tbptt"]  # it records the actor's groups, as does its folder's config
    path = tmp_path / "elsewhere" / "model_9.pt"
    path.parent.mkdir()
    torch.save({**file, "actor_state_dict": teacher}, path)
    student.load(str(path))
    assert (student.num_iterations, student._resumed) == (0, None)


def test_returns_start_again_after_a_checkpoint_without_those_of_rnd(tmp_path):
    make(tmp_path, "run", "rnd", num_steps_per_env=3).learn(3)
    path = tmp_path / "run" / "model_2.pt"
    file = torch.load(path, weights_only=True)
    episodes = file["rsl_tbptt_runner"]["resume"]["episodes"]
    for name in ("erewbuffer", "irewbuffer", "cur_ereward_sum", "cur_ireward_sum"):
        del episodes[name]
    file["rsl_tbptt_runner"]["resume"]["environment"]["episode_length"].zero_()
    torch.save(file, path)
    resumed = make(tmp_path, "run", "rnd", num_steps_per_env=3)
    resumed.load(str(path))
    resumed.learn(1)  # no episode ends; rsl_rl logs all means or none
    assert len(resumed.logger.rewbuffer) == len(resumed.logger.erewbuffer) == 0


def test_after_an_error_in_a_rollout_rnd_is_saved_as_it_was_before(tmp_path):
    steps = iter(range(15))

    def broken(actions):
        next(steps)  # until no entry is left
        return step(actions)

    make(tmp_path, "whole", "rnd").learn(2)
    runner = make(tmp_path, "broken", "rnd")
    step, runner.env.step = runner.env.step, broken
    with pytest.raises(StopIteration):
        runner.learn(3)
    one, other = (
        torch.load(tmp_path / folder / "model_1.pt", weights_only=True)
        for folder in ("whole", "broken")
    )
    assert_same(other["rnd_state_dict"], one["rnd_state_dict"])
    assert_same(other["rsl_tbptt"]["rnd"], one["rsl_tbptt"]["rnd"])


@pytest.mark.parametrize(
    ("case", "num_envs"), [("with a replay buffer", NUM_ENVS - 2), ("rnd", NUM_ENVS + 3)]
)
def test_another_number_of_environments_starts_new_episodes(case, num_envs, tmp_path):
    stopped = make(tmp_path, "run", case)
    stopped.learn(3)
    resumed = make(tmp_path, "run", case, env=Env(num_envs=num_envs))
    resumed.load(str(tmp_path / "run" / "latest"))
    at_first = resumed.env.state_dict()
    at_rollout = []
    train_mode = resumed.alg.train_mode
    resumed.alg.train_mode = lambda: (at_rollout.append(resumed.env.state_dict()), train_mode())
    told = f"written with {NUM_ENVS} environments and goes on with {num_envs}: hidden states and"
    with pytest.warns(UserWarning, match=told):
        resumed.learn(2)
    assert_same(at_rollout, [at_first])
    assert resumed.num_iterations == 5
    assert resumed.logger.tot_timesteps == 6 * (3 * NUM_ENVS + 2 * num_envs)


def test_an_environment_that_refuses_its_state_leaves_the_rest_unchanged(tmp_path):
    def refuse(_):
        raise ValueError("recall_length is 4, expected 3.")

    make(tmp_path, "run", "rnd").learn(2)
    resumed = make(tmp_path, "run", "rnd")
    resumed.load(str(tmp_path / "run" / "latest"))
    resumed.env.load_state_dict = refuse
    generator = torch.get_rng_state()
    with pytest.raises(ValueError, match="recall_length is 4"):
        resumed.learn(1)
    assert (resumed.logger.tot_timesteps, len(resumed.logger.rewbuffer)) == (0, 0)
    assert resumed.alg.actor.get_hidden_state() is None
    assert torch.equal(torch.get_rng_state(), generator)
