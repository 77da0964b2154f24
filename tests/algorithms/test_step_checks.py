"""What an environment returns and is given: copied at the door, in any form that has one meaning."""

import copy
from typing import Any

import pytest
import torch
from support.helpers import make_distillation, make_model, make_obs, make_ppo
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

NUM_STEPS, NUM_ENVS = 5, 4

RND = {
    "num_states": 7,
    "obs_groups": {"rnd_state": ["state"]},
    "num_outputs": 3,
    "predictor_hidden_dims": [8],
    "target_hidden_dims": [8],
}


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
    algorithm = make_ppo(TbpttPPO, NUM_STEPS, NUM_ENVS, rnd_cfg=copy.deepcopy(RND), **imitation)
    algorithm.set_teacher(controlled(make_model("actor", "mlp", NUM_ENVS, seed=3), buffer))
    algorithm.imitation.is_loaded = True
    return algorithm


@pytest.mark.parametrize("make", [distillation, imitating_ppo])
def test_tensors_that_an_environment_reuses_or_changes_make_no_difference(make):
    fresh, reused = (train(make, reused) for reused in (False, True))
    assert fresh.metrics == reused.metrics
    assert torch.equal(fresh.storage.actions, reused.storage.actions)
