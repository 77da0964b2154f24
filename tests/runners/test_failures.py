"""A full disk, a broken environment or NaN costs a file or a rollout, not the training."""

import errno
import os
import subprocess
from contextlib import suppress

import pytest
import torch
from support.helpers import parameters_of
from support.safe_runs import STEPS, STOCK, DisturbedEnv, die, make_runner, names, send
from tensordict import TensorDict

from rsl_tbptt.algorithms.find_nan import check_nan
from rsl_tbptt.checkpoints import writing
from rsl_tbptt.checkpoints.reading import latest_checkpoint
from rsl_tbptt.checkpoints.writing import NotWrittenError, save_checkpoint

DISK = 2 * 2**20


@pytest.fixture
def disk(tmp_path):
    """A small separate file system, if this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder):
    with (folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1000))


@pytest.fixture
def failing(monkeypatch):
    """Break off each write half-way, as long as the list has entries."""
    fails = []
    save = torch.save

    def fail(checkpoint, file):
        if not fails:
            return save(checkpoint, file)
        file.write(b"half")
        raise OSError(fails.pop(), os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", fail)
    return fails


def test_each_failed_file_is_skipped_with_a_warning(failing, tmp_path):
    def fail(times):
        return lambda: failing.extend([errno.ENOSPC] * times)

    env = DisturbedEnv({STEPS + 2: fail(2), 4 * STEPS + 2: fail(1)})
    with pytest.warns(UserWarning, match="training goes on") as caught:
        make_runner(tmp_path, env=env).learn(6)
    texts = [str(warning.message) for warning in caught]
    assert [text.split("'")[1][-10:] for text in texts] == [f"model_{it}.pt" for it in (1, 2, 4)]
    assert all("free some space there" in text and "\n" not in text for text in texts)
    assert names(tmp_path) == [f"model_{it}.pt" for it in (0, 3, 5)]
    assert not list(tmp_path.glob(".*"))
    assert latest_checkpoint(tmp_path).name == "model_5.pt"


@pytest.mark.parametrize("signalled", [False, True])
def test_a_failure_of_the_last_file_of_a_training_is_an_error(signalled, failing, tmp_path):
    def disturb():
        failing.append(errno.EIO)
        if signalled:
            send(15)()

    runner = make_runner(tmp_path, env=DisturbedEnv({STEPS + 2: disturb}), save_interval=100)
    with pytest.raises(NotWrittenError, match=r"model_1\.pt' cannot .* choose another folder or"):
        runner.learn(5 if signalled else 2)
    assert names(tmp_path) == ["model_0.pt"]
    runner.save(str(tmp_path / "model_1.pt"))
    assert names(tmp_path) == ["model_0.pt", "model_1.pt"]


@pytest.mark.parametrize("room", [0, 300, 20_000, 60_000])
def test_wherever_the_disk_is_full_the_reason_is_named_and_no_file_is_left(room, disk):
    """The file, its archive's directory or a buffer: torch's errors name only some of them."""
    fill(disk)
    with (disk / "ballast").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - room)
    with pytest.raises(NotWrittenError, match=r"No space left on device"):
        save_checkpoint({"value": torch.zeros(20_000)}, disk / "model.pt")
    assert [path.name for path in disk.iterdir()] == ["ballast"]
    if room == 0:
        with pytest.raises(ValueError, match=r"run folder .* \(No space left on device\): free"):
            writing.check_writable(disk)


class BrokenEnv(DisturbedEnv):
    """Returns something else in one step."""

    def __init__(self, at, change):
        super().__init__({})
        self.broken_at, self.change = at, change

    def step(self, actions):
        obs, rewards, dones, extras = super().step(actions.nan_to_num())
        given = {"obs": obs, "rewards": rewards, "dones": dones}
        if self.num_steps == self.broken_at:
            self.change(given)
        return *given.values(), extras


def test_an_existing_file_is_not_written_again(tmp_path):
    runner = make_runner(tmp_path, env=DisturbedEnv({STEPS + 1: die}))
    with pytest.raises(RuntimeError, match="the simulator died"):
        runner.learn(2)
    file = torch.load(tmp_path / "model_0.pt", weights_only=True)
    assert "generators" in file["rsl_tbptt_runner"]["resume"]


def test_an_error_is_raised_even_if_nothing_can_be_saved(tmp_path, monkeypatch):
    env = DisturbedEnv({2 * STEPS + 1: die})
    runner = make_runner(tmp_path, env=env, save_interval=100)

    def fail():
        if env.num_steps > 2 * STEPS:
            raise RuntimeError("an illegal\nmemory access")
        return save()

    save = runner.alg.save
    monkeypatch.setattr(runner.alg, "save", fail)
    with (
        pytest.raises(RuntimeError, match="the simulator died"),
        pytest.warns(UserWarning, match=r"could be written either \(an illegal memory access\):"),
    ):
        runner.learn(4)
    assert names(tmp_path) == ["model_0.pt"]


def sick(name):
    """Return a change of a step's results: NaN for one environment."""

    def change(given):
        given["dones"] = given["dones"].float()
        (given["obs"]["policy"] if name == "obs" else given[name])[2] = torch.nan

    return change


def sick_run(kind, name="obs", **options):
    """Build a stock runner whose environment gives NaN in the second rollout's third step."""
    env = BrokenEnv(STEPS + 3, sick(name))
    return make_runner(None, kind, STOCK[kind], env=env, algorithm=options)


@pytest.mark.parametrize("kind", STOCK)
def test_one_nan_costs_one_rollout(kind):
    runner = sick_run(kind)
    with pytest.warns(UserWarning, match=r"'policy' of environments \[2\], first at step"):
        runner.learn(4)
    assert runner.current_learning_iteration == 3
    assert runner.alg.metrics["skipped_updates"] == 1
    assert all(torch.isfinite(each).all() for each in runner.alg.get_policy().parameters())


@pytest.mark.parametrize(
    ("kind", "name"),
    [("distillation", "obs"), ("ppo", "obs"), ("ppo", "rewards"), ("ppo", "dones")],
)
def test_nan_is_named_at_once_and_training_can_continue(kind, name):
    runner = sick_run(kind, name, non_finite="raise")
    where = {"obs": "observation group 'policy'"}.get(name, name)
    with pytest.raises(ValueError, match=rf"gave NaN in {where} of environments \[2\]: repair"):
        runner.learn(4)
    assert runner.alg.storage.step == 2  # in the second rollout
    before = parameters_of(runner.alg)
    with pytest.warns(UserWarning, match="The rollout has 2 of 6 steps"):
        runner.learn(2)
    assert not torch.equal(parameters_of(runner.alg), before)


def test_nan_in_an_image_is_named_in_any_memory_layout():
    images = torch.zeros(3, 2, 4, 5).to(memory_format=torch.channels_last)
    images[1, 0, 2, 3] = torch.nan
    obs = TensorDict({"camera": images}, batch_size=[3])
    with pytest.raises(ValueError, match=r"group 'camera' of environments \[1\]: repair"):
        check_nan(obs, torch.zeros(3), torch.zeros(3))
