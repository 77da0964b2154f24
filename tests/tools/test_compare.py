"""Students of one teacher that differ in memory: rsl-tbptt compare, on the recall task."""

import json

import pytest
import torch
from support.safe_runs import make_runner, teacher_cfg
from tensordict import TensorDict

from rsl_tbptt.tools.commands.cli import main
from rsl_tbptt.tools.simulate import compare
from rsl_tbptt.tools.simulate.compare import PAST, Bench, WithHistory
from rsl_tbptt.tools.simulate.verdict import SEES_ALL, STUDENTS
from rsl_tbptt_tasks.memory import RecallEnv

SIZES = ["--num-envs=8", "--gradient-length=8", "--iterations=2", "--seeds=2"]


class Recall(RecallEnv):
    def seed(self, seed):
        self._generator.manual_seed(seed)
        torch.seed()  # a simulator may leave torch's own numbers as they come


def make(num_envs, seed, device):
    return Recall(num_envs, 3, device, seed)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Return the checkpoint of a teacher that knows nothing."""
    folder = tmp_path_factory.mktemp("teacher")
    make_runner(folder, "ppo", **teacher_cfg()).learn(1)
    return folder / "model_0.pt"


@pytest.fixture
def run(teacher, tmp_path, capsys):
    """Compare in a folder; return the status, what is printed, and what the file holds."""

    def run(*words, folder=tmp_path / "out", sizes=SIZES):
        where = [f"--teacher={teacher}", f"--env={__name__}:make", f"--output={folder}"]
        status = main(["compare", *where, *sizes, *words])
        shown, file = capsys.readouterr(), folder / "compare.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        return status, shown.out + shown.err, found

    return run


def test_students_are_trained_evaluated_and_saved(run, teacher, tmp_path):
    status, shown, found = run("--bias")
    assert status == 0
    names = [*STUDENTS, *SEES_ALL]
    assert [each["name"] for each in found["students"]] == 2 * names
    assert [each["seed"] for each in found["students"]] == 5 * [1] + 5 * [2]
    weights = {each["name"]: each["num_weights"] for each in found["students"]}
    assert max(weights.values()) < 1.03 * min(weights.values())
    assert found["plan"]["obs"] == ["policy"]
    assert found["verdict"].capitalize() in shown
    assert "Memory bias" in shown
    assert "looks back" in shown or "memory is not used" in shown
    checkpoint, output = tmp_path / "out" / "lstm-2" / "model_1.pt", tmp_path / "again.json"
    words = ["--episodes=8", "--seed=1002", f"--env={__name__}:make", f"--output={output}"]
    assert main(["evaluate", f"--checkpoint={checkpoint}", *words]) == 0
    trained, taught = (torch.load(path, weights_only=True) for path in (checkpoint, teacher))
    for name, values in taught["actor_state_dict"].items():
        assert torch.equal(trained["teacher_state_dict"][name], values)
    again, once = json.loads(output.read_text()), found["students"][7]
    assert again["returns"] == pytest.approx(once["returns"])
    assert again["jitter"] == pytest.approx(once["jitter"])


def test_ctrl_c_leaves_what_is_finished_and_resuming_adds_the_rest(run, monkeypatch, tmp_path):
    whole = run()[2]
    add, folder = Bench.add, tmp_path / "broken"

    def add_few(bench, name, seed, result, _):
        if len(result["students"]) == 4:
            raise KeyboardInterrupt
        add(bench, name, seed, result, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Bench, "add", add_few)
        status, shown, broken = run(folder=folder)
    assert status == 130
    assert "Not decided" in shown
    assert len(broken["students"]) == 4
    returns = [each["returns"] for each in whole["students"]]
    resumed = run("--resume", folder=folder)[2]
    assert [each["returns"] for each in resumed["students"]] == returns
    more = run("--resume", "--seeds=3", folder=folder)[2]
    assert [each["returns"] for each in more["students"][:6]] == returns
    assert len(more["students"]) == 9
    assert more["teacher"] == whole["teacher"]


def test_a_comparison_is_neither_overwritten_nor_mixed_with_another(run):
    assert "does not exist: --resume goes on" in run("--resume")[1]
    assert run("--seeds=1")[0] == 0
    assert "exists: --resume goes on" in run()[1]
    assert "'history': 5" in run("--resume", "--history=3")[1]


def test_time_decides_how_long_students_train(run, monkeypatch):
    _, shown, found = run("--minutes=0", sizes=["--num-envs=8"])
    assert "--minutes leaves 0 s to train students, expected at least" in shown
    assert found == {}
    bench = Bench.__new__(Bench)
    clock = iter(range(100))
    monkeypatch.setattr(compare.time, "monotonic", lambda: 5.0 * next(clock))
    bench.students, bench.bar = {"a": None, "b": None}, compare.tqdm(disable=True)
    monkeypatch.setattr(Bench, "train", lambda *_: None)
    assert bench.iterations_in(300.0, 3) == 50  # each of six takes 5 s for 5 iterations


@pytest.mark.parametrize(
    ("word", "least"),
    [("--seeds=0", 1), ("--iterations=0", 1), ("--history=0", 1), ("--gradient-length=3", 4)],
)
def test_numbers_that_are_too_small_are_named(run, word, least):
    assert f"{word.replace('=', ' is ')}, expected at least {least}." in run(word)[1]


@pytest.mark.parametrize("words", [["--obs=camera"], ["--obs", "policy", "depth"]])
def test_groups_that_are_no_vectors_are_refused(run, words):
    assert "expected groups of vectors among {'policy': [2], 'privileged': [3]}" in run(*words)[1]


class Counting:
    """Two environments that show their step; the second one's episode ends at step 3."""

    num_envs, device, max_episode_length = 2, "cpu", 9

    def __init__(self, late=(0.0, 0.0)):
        self.reward, self.extras = 0.0, {"time_outs": torch.tensor(late)[:, None]}
        self.episode_length_buf = torch.zeros(2, dtype=torch.long)

    def step(self, _):
        self.episode_length_buf = self.episode_length_buf + 1
        dones = torch.tensor([False, self.episode_length_buf[0] == 3])
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf)
        return self.seen(), torch.full((2,), self.reward), dones.long(), self.extras

    def seen(self):
        return TensorDict({"policy": 1.0 * self.episode_length_buf[:, None]}, batch_size=[2])


def test_a_history_is_of_one_episode_and_the_oldest_is_first():
    inner = Counting()
    env = WithHistory(inner, ["policy"], 3, compare.tqdm(disable=True))
    seen = [env.begin(inner.seen())[PAST].tolist()]
    seen += [env.step(torch.zeros(2, 1))[0][PAST].tolist() for _ in range(4)]
    assert [first for first, _ in seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert [two for _, two in seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]
    assert env.get_observations()[PAST].tolist() == seen[-1]
    env.episode_length_buf = torch.tensor([7, 8])
    assert inner.episode_length_buf.tolist() == [7, 8]


@pytest.mark.parametrize(("late", "rate"), [((1.0, 0.0), 0.5), ((0.0, 1.0), 0.0)])
def test_the_last_gain_is_of_rewards_and_of_episodes_that_end_early(late, rate):
    inner = Counting(late)
    env = WithHistory(inner, ["policy"], 1, compare.tqdm(disable=True))
    env.begin(inner.seen())
    for step in range(12):
        inner.reward = 1.0 if step < 9 else 2.0
        env.step(torch.zeros(2, 1))
    assert env.earned[2].tolist() == [1.0, rate]
    assert env.last_gain() == 10.0  # an episode has at most 10 steps
    env.earned = [torch.tensor([1.0, rate]) for rate in (0, 0, 0, 0, 0, 0, 0.5, 0)]
    # From 10 steps to those of a rate of 1 / 4
    assert env.last_gain() == pytest.approx(4 * (1 - 0.75**10) - 10)
