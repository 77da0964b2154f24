"""Functions of users are tried out once, when training is set up; errors name function and fix."""

from typing import Any

import pytest
import torch
from support.discrete import DISCRETE
from support.helpers import make_distillation, make_ppo
from support.symmetry_reference import ENV, mirror, symmetry_cfg
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def same(given, found):
    return found


def swapped(given, found):
    return torch.cat(found.chunk(2)[::-1])


def in_place(given, found):
    given["policy"].neg_()
    return found


def one_sign_forgotten(given, obs):
    policy = obs["policy"].clone()
    rows = policy[len(given) :]
    rows[:, [0, 2]] = torch.stack((-rows[:, 2], rows[:, 0]), -1)  # there, but not back
    return obs.set("policy", policy)


def infinite(given, obs):
    return obs.apply(lambda each: torch.cat((each[: len(given)], each[len(given) :] / 0.0)))


def of_actions(change):
    return same, change


FAULTY = [
    ((swapped, same), r"'policy' whose first 4 rows are not those given, expected these"),
    (of_actions(swapped), r"returned actions whose first 4 rows are not those given"),
    (
        (lambda given, obs: obs.apply(lambda each: each[..., :-1]), same),
        r"'policy' of the form \(8, 4\).*, expected \(8, 5\)",
    ),
    (
        (lambda given, obs: obs.select("state"), same),
        r"no observation groups \['policy'\], expected all that the models",
    ),
    (
        (lambda given, obs: obs.half(), same),
        r"form \(8, 5\), torch.float16, cpu, expected \(8, 5\), torch.float3",
    ),
    (
        of_actions(lambda given, actions: actions.long()),
        r"actions of the form .* torch.int64, cpu, expected .* torch.float32",
    ),
    (
        (in_place, same),
        r"data_augmentation_func writes into the 'policy' .* Begin with \.clone\(\)",
    ),
    (
        of_actions(lambda given, actions: (given.clamp_(-0.1, 0.1), actions)[1]),
        r"data_augmentation_func writes into the 'actions' that it is given",
    ),
    (
        (one_sign_forgotten, same),
        r"'policy' whose mirror image 1 is not mirrored back to the orig",
    ),
    (
        of_actions(lambda given, actions: torch.cat((given, actions[len(given) :].round()))),
        r"returned actions whose mirror image 1 is not mirrored back",
    ),
    ((infinite, same), r"'policy' with NaN or inf, expected finite values"),
    (
        (lambda given, obs: obs[: len(given)], same),
        r"'policy' of the form \(4, 5\).*, expected \(8, 5\)",
    ),
]
"""Changes of the observations and of the actions that a mirror function returns."""


def ppo_with(cfg):
    return make_ppo(TbpttPPO, 4, 6, "mlp", "mlp", symmetry_cfg=cfg)


def distillation_with(cfg):
    return make_distillation(TbpttDistillation, 4, 6, gradient_length=4, symmetry_cfg=cfg)


@pytest.mark.parametrize(("changes", "message"), FAULTY)
@pytest.mark.parametrize("make", [ppo_with, distillation_with])
def test_a_faulty_mirror_function_is_refused(make, changes, message):
    def faulty(env, obs, actions):
        assert env is ENV
        images = mirror(1)(env=ENV, obs=obs, actions=actions)
        pairs: Any = zip(changes, (obs, actions), images, strict=True)
        return tuple(f if f is None else change(given, f) for change, given, f in pairs)

    cfg = {**symmetry_cfg(mirror_loss=False), "data_augmentation_func": faulty}
    with pytest.raises(ValueError, match=message):
        make(cfg)


def turned(obs, actions, quarters):
    """Turn the first two columns of everything by quarters; the others have no direction."""

    def turn(each):
        first, second = each[..., :1], each[..., 1:2]
        for _ in range(quarters):
            first, second = -second, first
        return torch.cat((first, second, each[..., 2:]), -1)

    return None if obs is None else obs.apply(turn), None if actions is None else turn(actions)


def with_rotations(env, obs, actions):
    """Append three images, of which two are not their own inverse."""
    images = [turned(obs, actions, quarters) for quarters in range(4)]
    joined: Any = zip(*images, strict=True)
    return tuple(None if parts[0] is None else torch.cat(parts) for parts in joined)


def test_images_may_be_rotations_and_groups_that_no_model_reads_may_miss():
    def without_unread(env, obs, actions):
        rows: Any
        rows, actions = with_rotations(env, obs, actions)
        read = None if rows is None else TensorDict({"policy": rows["policy"]}, [len(rows)])
        return read, actions

    cfg = {**symmetry_cfg(mirror_loss=False), "data_augmentation_func": without_unread}
    algorithm = distillation_with(cfg)
    assert algorithm.mirrored.num_robots == 4


def test_a_mirror_loss_of_actions_without_gradient_is_refused():
    actor: dict[str, Any] = {"distribution_cfg": DISCRETE}
    cfg = symmetry_cfg(augmentation=False)
    with pytest.raises(
        ValueError, match="use_mirror_loss is True, expected False with the actor's"
    ):
        make_ppo(TbpttPPO, 4, 6, "mlp", "mlp", actor_kwargs=actor, symmetry_cfg=cfg)
