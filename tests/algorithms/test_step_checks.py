"""An environment's tensors are copied at the door, in any form that has one meaning."""

from typing import Any

import pytest
import torch
from rsl_rl.storage import RolloutStorage
from support.helpers import make_distillation, make_model, make_obs, make_ppo, rnd_cfg
from support.safe_runs import STOCK, make_runner
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt_tasks.memory import RecallEnv

NUM_STEPS, NUM_ENVS = 5, 4


class Buffers:
    """An environment's tensors: fresh ones at each step, or always the same, changed in place."""

    def __init__(self, reused: bool) -> None:
        self._reused, self._kept = reused, {}

    def __call__(self, name: str, values: Any) -> Any:
        if not self._reused:
            return values.clone()
        return self._kept.setdefault(name, values.clone()).copy_(values)

    def spoil(self) -> None:
        for values in self._kept.values():
            values.zero_()


def train(make: Any, reused: bool, num_updates: int = 2) -> Any:
    """Train on given numbers; with reused buffers each is overwritten as soon as it may be."""
    generator, buffer = torch.Generator().manual_seed(0), Buffers(reused)
    algorithm = make(buffer)
    with torch.inference_mode():
        obs = buffer("obs", make_obs(NUM_ENVS, generator))
    for _ in range(num_updates):
        torch.manual_seed(1)
        with torch.inference_mode():
            for _ in range(NUM_STEPS):
                actions = algorithm.act(obs)
                rewards = torch.randn(NUM_ENVS, generator=generator)
                dones, late = torch.rand(2, NUM_ENVS, generator=generator) < 0.3
                if reused:
                    actions.clamp_(-0.01, 0.01)
                    buffer.spoil()
                final = buffer("final", make_obs(NUM_ENVS, generator))
                extras = {
                    "time_outs": buffer("time_outs", dones & late),
                    "final_obs": dict(final.items()),
                }
                obs = buffer("obs", make_obs(NUM_ENVS, generator))
                rewards, dones = buffer("rewards", rewards), buffer("dones", dones.long())
                algorithm.process_env_step(obs, rewards, dones, extras)
                if reused:
                    for values in (rewards, dones, *extras["final_obs"].values()):
                        values.zero_()
            algorithm.compute_returns(obs)
        algorithm.update()
    return algorithm


def controlled(teacher: Any, buffer: Buffers) -> Any:
    """Let a teacher return a tensor of the environment, as a controller there does."""
    forward = teacher.forward
    teacher.forward = lambda *args, **kwargs: buffer("labels", forward(*args, **kwargs))
    return teacher


def distillation(buffer: Buffers) -> Any:
    algorithm = make_distillation(
        TbpttDistillation, NUM_STEPS, NUM_ENVS, gradient_length=3, buffer_rollouts=2
    )
    controlled(algorithm.teacher, buffer)
    return algorithm


def imitating_ppo(buffer: Buffers) -> Any:
    teacher_cfg = {"class_name": "MLPModel"}
    imitation = {"teacher_cfg": teacher_cfg, "teacher_coef": 0.5, "teacher_loss": "mse"}
    algorithm = make_ppo(TbpttPPO, NUM_STEPS, NUM_ENVS, rnd_cfg=rnd_cfg(), **imitation)
    algorithm.set_teacher(controlled(make_model("actor", "mlp", NUM_ENVS, seed=3), buffer))
    algorithm.imitation.teacher_file.is_loaded = True
    return algorithm


@pytest.mark.parametrize("make", [distillation, imitating_ppo])
def test_tensors_that_an_environment_reuses_or_changes_make_no_difference(make):
    fresh, reused = (train(make, reused) for reused in (False, True))
    assert fresh.metrics == reused.metrics
    assert torch.equal(fresh.storage.actions, reused.storage.actions)


def rolled_out(convert: Any, num_steps: int = 3) -> Any:
    """Return a PPO after a rollout whose rewards, dones and extras are converted."""
    algorithm = make_ppo(TbpttPPO, num_steps, NUM_ENVS)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    obs = make_obs(NUM_ENVS, generator)
    with torch.inference_mode():
        for _ in range(num_steps):
            algorithm.act(obs)
            rewards = torch.randint(2, (NUM_ENVS,), generator=generator).float()
            dones, late = torch.rand(2, NUM_ENVS, generator=generator) < 0.5
            extras = {"time_outs": dones & late, "final_obs": dict(make_obs(4, generator).items())}
            step = {"obs": make_obs(NUM_ENVS, generator), "rewards": rewards}
            step |= {"dones": dones.long(), **extras}
            step |= convert(step)
            obs, rewards, dones = (step.pop(name) for name in ("obs", "rewards", "dones"))
            algorithm.process_env_step(obs, rewards, dones, step)
        algorithm.compute_returns(obs)
    return algorithm


def of_groups(convert: Any) -> Any:
    return lambda step: {"final_obs": {k: convert(v) for k, v in step["final_obs"].items()}}


SAME = {
    "rewards that are integers": lambda step: {"rewards": step["rewards"].long()},
    "rewards in double precision": lambda step: {"rewards": step["rewards"].double()},
    "numpy": lambda step: {k: step[k].numpy() for k in ("rewards", "dones", "time_outs")},
    "dones that are codes": lambda step: {"dones": step["dones"] * torch.tensor([2, -1, 256, 1])},
    "time-outs as a column": lambda step: {"time_outs": step["time_outs"][:, None]},
    "final observations in numpy": of_groups(torch.Tensor.numpy),
    "final observations of the critic": lambda step: {
        "final_obs": {"state": step["final_obs"]["state"]}
    },
    "final observations in a TensorDict": lambda step: {
        "final_obs": TensorDict(step["final_obs"], batch_size=[NUM_ENVS])
    },
}


@pytest.mark.parametrize("form", SAME)
def test_a_form_that_has_one_meaning_is_that(form):
    expected, given = rolled_out(lambda step: {}), rolled_out(SAME[form])
    for name in ("rewards", "dones", "returns"):
        assert torch.equal(getattr(given.storage, name), getattr(expected.storage, name))
    for model in ("actor", "critic"):
        states = [getattr(each, model).get_hidden_state() for each in (given, expected)]
        assert all(map(torch.equal, *states))


def test_none_in_place_of_time_outs_means_that_there_are_none():
    values = None, torch.zeros(NUM_ENVS)
    none, zeros = (rolled_out(lambda _, value=value: {"time_outs": value}) for value in values)
    assert torch.equal(none.storage.returns, zeros.storage.returns)


def of_policy(convert: Any) -> Any:
    return lambda step: {
        "obs": step["obs"].clone(False).update({"policy": convert(step["obs"]["policy"])})
    }


REFUSED = {
    "a smaller group": (of_policy(lambda values: values[:, 1:]), r"group 'policy' is of shape \(4"),
    "a missing group": (
        lambda step: {"obs": step["obs"].exclude("policy")},
        r"group 'policy' is missing among \['state'\]",
    ),
    "another type": (
        of_policy(torch.Tensor.double),
        r"group 'policy' is of shape \(4, 5\) on cpu, torch.float64, expected .* torch.float32",
    ),
    "a column": (lambda step: {"rewards": step["rewards"][:, None]}, r"rewards is of shape \(4, 1"),
    "one done for all": (lambda step: {"dones": step["dones"].any()}, r"dones is of shape \(\) on"),
    "another device": (
        lambda step: {"dones": step["dones"].to("meta")},
        r"^dones is of shape \(4,\) on meta, torch.int64, expected shape \(4,\) on cpu",
    ),
    "a list": (lambda step: {"rewards": [0.0] * 4}, r"rewards is a list, expected a tensor of"),
    "a scalar": (
        lambda step: {"time_outs": torch.tensor(True)},
        r"extras\['time_outs'\] is of shape \(\) on cpu, .* one per environment",
    ),
    "a number": (lambda step: {"time_outs": True}, r"extras\['time_outs'\] is a bool, expected a"),
    "time-outs of some": (
        lambda step: {"time_outs": step["time_outs"][:2]},
        r"extras\['time_outs'\] is of shape \(2,\) on .*, expected shape \(4,\)",
    ),
    "final observations of some": (
        of_groups(lambda values: values[:2]),
        r"extras\['final_obs'\]\['state'\] is of shape \(2, 7\) on .* shape \(4, 7\)",
    ),
    "final observations without the critic's": (
        lambda step: {"final_obs": {"policy": step["final_obs"]["policy"]}},
        r"extras\['final_obs'\] has the groups \['policy'\], expected all .* add 'state'",
    ),
    "final observations by environment": (
        lambda step: {"final_obs": [None] * 4},
        r"extras\['final_obs'\] is a list, expected observation groups by name",
    ),
}


@pytest.mark.parametrize("form", REFUSED)
def test_a_form_without_a_certain_meaning_is_refused(form):
    convert, message = REFUSED[form]
    with pytest.raises(ValueError, match=message):
        rolled_out(convert)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_observations_that_a_model_cannot_read_are_refused_when_training_is_set_up(dtype):
    obs = make_obs(NUM_ENVS)
    obs["policy"] = obs["policy"].to(dtype)
    models = [
        make_model(role, "mlp", NUM_ENVS, seed=1, output_dim=1) for role in ("actor", "critic")
    ]
    storage = RolloutStorage("rl", NUM_ENVS, NUM_STEPS, obs, [1], "cpu")
    if storage.observations["policy"].dtype != dtype:
        pytest.skip("rsl_rl 5.0 stores float32 alone, so the first step is refused")
    message = rf"obs_groups\['actor'\] is of type {dtype} in 'policy', expected torch.float32"
    with pytest.raises(ValueError, match=message):
        TbpttPPO(models[0], models[1], storage)


class OddEnv(RecallEnv):
    """Has a group that nothing reads."""

    def __init__(self, odd: Any) -> None:
        super().__init__(NUM_ENVS, 3)
        self.odd, self.num_steps = odd, 0

    def get_observations(self) -> TensorDict:
        obs = super().get_observations()
        obs["odd"] = self.odd(self.num_steps)
        return obs

    def step(self, actions: torch.Tensor) -> tuple:
        self.num_steps += 1
        return super().step(actions)


ODD = {
    "terms": lambda step: TensorDict({"a": torch.zeros(NUM_ENVS, 2)}, batch_size=[NUM_ENVS]),
    "text": lambda step: ["standing"] * NUM_ENVS,
    "of a changing width": lambda step: torch.zeros(NUM_ENVS, 1 + step),
    "of a changing type": lambda step: torch.zeros(NUM_ENVS, 2).to(
        torch.int16 if step % 2 else torch.float64
    ),
    "without a number": lambda step: torch.full((NUM_ENVS, 2), torch.nan),
}


@pytest.mark.parametrize("kind", STOCK)
@pytest.mark.parametrize("odd", ODD)
def test_a_group_that_nothing_reads_never_stops_a_training(kind, odd, tmp_path):
    runner = make_runner(
        tmp_path, kind, STOCK[kind], {"non_finite": "raise"}, OddEnv(ODD[odd]), save_interval=1
    )
    runner.learn(2)
    assert (tmp_path / "model_1.pt").exists()


def test_a_group_that_is_read_has_to_be_a_tensor():
    config: dict[str, Any] = {"obs_groups": {"actor": ["policy"], "critic": ["odd"]}}
    with pytest.raises(ValueError, match=r"\['critic'\] has 'odd', a TensorDict, expected a tens"):
        make_runner(None, "ppo", env=OddEnv(ODD["terms"]), **config)
