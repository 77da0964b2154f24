"""Functions of users are tried out once, when training is set up; errors name function and fix."""

import inspect
from typing import Any

import pytest
import torch
from support.discrete import DISCRETE
from support.helpers import make_distillation, make_ppo, train
from support.several_teachers import MEMORYLESS, save_teachers
from support.several_teachers import make as make_several
from support.symmetry_reference import ENV, mirror, symmetry_cfg
from tensordict import TensorDict

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.compat.versions import GaussianDistribution

pytestmark = pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value")


def changed(change):
    """Return a mirror function whose result is changed: that of observations and of actions."""

    def faulty(env, obs, actions):
        assert env is ENV
        given_obs, given_actions = obs, actions
        obs, actions = mirror(1)(env=ENV, obs=obs, actions=actions)
        if obs is not None:
            obs = change(given_obs, obs) if change.__name__.endswith("obs") else obs
        elif change.__name__.endswith("actions"):
            actions = change(given_actions, actions)
        return obs, actions

    return faulty


def images_first_obs(given, obs):
    return torch.cat(obs.chunk(2)[::-1])


def images_first_actions(given, actions):
    return torch.cat(actions.chunk(2)[::-1])


def without_a_column_obs(given, obs):
    return obs.apply(lambda each: each[..., :-1])


def without_a_group_obs(given, obs):
    return obs.select("state")


def half_as_precise_obs(given, obs):
    return obs.half()


def integer_actions(given, actions):
    return actions.long()


def in_place_obs(given, obs):
    given["policy"].neg_()
    return obs


def in_place_actions(given, actions):
    given.clamp_(-0.1, 0.1)
    return actions


def one_sign_forgotten_obs(given, obs):
    policy = obs["policy"].clone()
    rows = policy[len(given) :]
    rows[:, [0, 2]] = torch.stack((-rows[:, 2], rows[:, 0]), -1)  # there, but not back
    return obs.set("policy", policy)


def rounded_actions(given, actions):
    return torch.cat((given, actions[len(given) :].round()))


def infinite_obs(given, obs):
    return obs.apply(lambda each: torch.cat((each[: len(given)], each[len(given) :] / 0.0)))


def half_the_rows_obs(given, obs):
    return obs[: len(given)]


def ppo_with(cfg):
    return make_ppo(TbpttPPO, 4, 6, "mlp", "mlp", symmetry_cfg=cfg)


def distillation_with(cfg):
    return make_distillation(TbpttDistillation, 4, 6, gradient_length=4, symmetry_cfg=cfg)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (images_first_obs, r"'policy' whose first 4 rows are not those given, expected these"),
        (images_first_actions, r"returned actions whose first 4 rows are not those given"),
        (without_a_column_obs, r"'policy' of the form \(8, 4\).*, expected \(8, 5\)"),
        (without_a_group_obs, r"no observation groups \['policy'\], expected all that the models"),
        (
            half_as_precise_obs,
            r"form \(8, 5\), torch.float16, cpu, expected \(8, 5\), torch.float3",
        ),
        (integer_actions, r"actions of the form .* torch.int64, cpu, expected .* torch.float32"),
        (
            in_place_obs,
            r"data_augmentation_func writes into the 'policy' .* Begin with \.clone\(\)",
        ),
        (in_place_actions, r"data_augmentation_func writes into the 'actions' that it is given"),
        (one_sign_forgotten_obs, r"'policy' whose mirror image 1 is not mirrored back to the orig"),
        (rounded_actions, r"returned actions whose mirror image 1 is not mirrored back"),
        (infinite_obs, r"'policy' with NaN or inf, expected finite values"),
        (half_the_rows_obs, r"'policy' of the form \(4, 5\).*, expected \(8, 5\)"),
    ],
)
@pytest.mark.parametrize("make", [ppo_with, distillation_with])
def test_a_faulty_mirror_function_is_refused(make, change, message):
    cfg = {**symmetry_cfg(mirror_loss=False), "data_augmentation_func": changed(change)}
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


def writing_loss(actions, labels):
    return (actions - labels.clamp_(-0.1, 0.1)).square()


@pytest.mark.parametrize("option", ["loss_type", "auxiliary"])
def test_a_loss_that_writes_is_refused(option):
    head = {"it": {"target": "state", "loss": writing_loss}}
    options: dict[str, Any] = {option: writing_loss if option == "loss_type" else head}
    with pytest.raises(ValueError, match="writes into the 'labels' that it is given"):
        make_distillation(TbpttDistillation, 4, 6, gradient_length=4, **options)


def test_a_selector_that_writes_is_refused(tmp_path):
    def selector(obs):
        return obs["skill"].fill_(0.0)

    with pytest.raises(ValueError, match=r"selector.*writes into the 'skill' that it is given"):
        make_several(save_teachers(tmp_path, MEMORYLESS), selector=selector)


@pytest.mark.skipif(
    "std_range" not in inspect.signature(GaussianDistribution.__init__).parameters,
    reason="rsl_rl 5.0 clamps no deviation",
)
@pytest.mark.parametrize("std_type", ["scalar", "log"])
@pytest.mark.parametrize(("std", "found"), [(0.05, "0.1"), (3.0, "2")])
def test_a_noise_that_the_actor_cannot_have_is_refused(std, found, std_type):
    clamped = {"init_std": 0.3, "std_range": (0.1, 2.0), "std_type": std_type}
    actor: dict[str, Any] = {"distribution_cfg": {"class_name": "GaussianDistribution", **clamped}}
    message = f"student_action_std is {std}, expected .* it would act with {found}"
    with pytest.raises(ValueError, match=message):
        make_ppo(TbpttPPO, 4, 6, "mlp", "mlp", actor_kwargs=actor, student_action_std=std)
    make_ppo(TbpttPPO, 4, 6, "mlp", "mlp", actor_kwargs=actor, student_action_std=0.5)


def test_good_functions_still_train():
    options: dict[str, Any] = {
        "gradient_length": 4,
        "imitation_weight": lambda rollout: rollout.rewards == 0,
        "symmetry_cfg": symmetry_cfg(mirror_loss=False),
    }
    algorithm = make_distillation(TbpttDistillation, 4, 6, **options)
    assert train(algorithm, 0)["skipped_updates"] == 0
    ppo = make_ppo(TbpttPPO, 4, 6, "lstm", "mlp", symmetry_cfg=symmetry_cfg())
    assert train(ppo, 0)["skipped_updates"] == 0
