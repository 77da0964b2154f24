"""An environment that breaks: the error names what came, and what was done before is kept."""

import pytest
import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner
from support.safe_runs import NUM_ENVS, DisturbedEnv, make_runner

from rsl_tbptt.checkpoints.reading import latest_checkpoint

STOCK = {"distillation": DistillationRunner, "ppo": OnPolicyRunner}
STEPS = 6
"""Of a rollout."""


class BrokenEnv(DisturbedEnv):
    """Gives something else from one of its steps on."""

    def __init__(self, at, change):
        super().__init__({})
        self.broken_at, self.change = at, change

    def step(self, actions):
        obs, rewards, dones, extras = super().step(actions)
        given = {"obs": obs, "rewards": rewards, "dones": dones}
        if self.num_steps >= self.broken_at:
            self.change(given)
        return *given.values(), extras


def of_group(change):
    def change_group(given):
        given["obs"]["policy"] = change(given["obs"]["policy"])

    return change_group


def of(name, change):
    return lambda given: given.update({name: change(given[name])})


def without_group(given):
    del given["obs"]["policy"]


FIX = r": repair the environment's step\(\) and get_observations\(\)\.$"
CASES = {
    "a smaller group": (
        of_group(lambda values: values[:, :-1]),
        rf"group 'policy' is of shape \(4, \d+\), expected \(4, \d+\), as when training was.*{FIX}",
    ),
    "fewer environments": (
        of("obs", lambda obs: obs[:3]),
        rf"group '\w+' is of shape \(3, \d+\), expected \(4, \d+\), as when training was .*{FIX}",
    ),
    "a missing group": (
        without_group,
        rf"group 'policy' is missing among \['privileged'\], expected as when training was.*{FIX}",
    ),
    "another type": (
        of_group(torch.Tensor.double),
        rf"group 'policy' is of type torch.float64, expected torch.float32, as when .*{FIX}",
    ),
    "rewards in a column": (
        of("rewards", lambda rewards: rewards.unsqueeze(1)),
        rf"rewards is of shape \(4, 1\), expected \(4,\), one per environment{FIX}",
    ),
    "rewards for fewer": (
        of("rewards", lambda rewards: rewards[:2]),
        rf"rewards is of shape \(2,\), expected \(4,\), one per environment{FIX}",
    ),
    "one done for all": (
        of("dones", lambda dones: dones.any()),
        rf"dones is of shape \(\), expected \(4,\), one per environment{FIX}",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", STOCK)
@pytest.mark.parametrize("last_step", [False, True])
def test_a_tensor_of_another_form_is_named(case, kind, last_step, tmp_path):
    change, message = CASES[case]
    env = BrokenEnv(2 * STEPS if last_step else STEPS + 2, change)
    runner = make_runner(tmp_path, kind, env=env, save_interval=100)
    with pytest.raises(ValueError, match=message):
        runner.learn(4)
    assert latest_checkpoint(tmp_path).name in ("model_0.pt", "model_1.pt")


def test_no_tensor_and_another_device_are_named():
    runner = make_runner(None, "ppo")
    obs, zeros = runner.env.get_observations(), torch.zeros(NUM_ENVS)
    runner.alg.act(obs)
    with pytest.raises(ValueError, match=r"^rewards is a ndarray, expected a tensor: repair"):
        runner.alg.process_env_step(obs, zeros.numpy(), zeros, {})
    with pytest.raises(ValueError, match=r"^dones is on meta, expected cpu, where .*\.to\('cpu'\)"):
        runner.alg.process_env_step(obs, zeros, zeros.to("meta"), {})
    runner.alg.process_env_step(obs, zeros, zeros, {})


@pytest.mark.parametrize("kind", STOCK)
def test_the_stock_runner_names_it_too(kind):
    env = BrokenEnv(3, CASES["rewards for fewer"][0])
    with pytest.raises(ValueError, match=CASES["rewards for fewer"][1]):
        make_runner(None, kind, STOCK[kind], env=env).learn(1)


def die():
    raise RuntimeError("the simulator died")


@pytest.mark.parametrize("kind", STOCK)
def test_what_was_done_before_a_step_failed_is_kept(kind, tmp_path):
    env = DisturbedEnv({3 * STEPS + 4: die})
    runner = make_runner(tmp_path, kind, env=env, save_interval=100)
    with pytest.raises(RuntimeError, match="the simulator died"):
        runner.learn(6)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["model_0.pt", "model_2.pt"]
    whole = make_runner(tmp_path / "whole", kind)
    whole.learn(3)
    resumed = make_runner(tmp_path, kind)
    resumed.load(str(tmp_path / "latest"))
    assert resumed.num_iterations == 3
    of_resumed, of_whole = (r.alg.get_policy().state_dict() for r in (resumed, whole))
    assert all(torch.equal(of_resumed[name], value) for name, value in of_whole.items())
    # Half a rollout was taken: neither its episodes nor its random numbers are gone on with.
    assert [state.keys() for state in resumed._resumed] == [{"counters"}]
    resumed.learn(1)
    assert resumed.logger.tot_timesteps == 4 * STEPS * NUM_ENVS


def test_a_file_that_is_there_is_not_written_again(tmp_path):
    runner = make_runner(tmp_path, env=DisturbedEnv({STEPS + 1: die}))
    with pytest.raises(RuntimeError, match="the simulator died"):
        runner.learn(2)
    file = torch.load(tmp_path / "model_0.pt", weights_only=True)
    assert "generators" in file["rsl_tbptt_runner"]["resume"]


def test_an_error_goes_on_where_nothing_can_be_saved(tmp_path, monkeypatch):
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
    assert [path.name for path in tmp_path.glob("*.pt")] == ["model_0.pt"]
