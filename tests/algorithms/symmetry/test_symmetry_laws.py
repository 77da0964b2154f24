"""The laws of PPO with mirrored robots: exactness, isolation, invariance, ratio and undoing."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import make_ppo
from support.inside import add_gradient
from support.ppo_reference import Segment, disturb, gradient_of, gradients_of_update, record_states
from support.symmetry_reference import MirroredReference, mirror, robots_of, symmetry_cfg
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.algorithms import TbpttPPO
from rsl_tbptt.core.hidden_state import as_tensors

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
    pytest.mark.filterwarnings("ignore:gradient_length is .*, more than num_steps_per_env"),
    pytest.mark.filterwarnings("ignore:minibatch_unit is 'window', which acts as 'env'"),
]

KINDS = [
    ("lstm", "lstm"),
    ("gru", "lstm"),
    ("lstm", "mlp"),
    ("mlp", "gru"),
    ("cnn-lstm", "cnn-gru"),
]
USES = [(True, True), (True, False), (False, True)]


def make(num_steps=6, num_envs=3, models=("lstm", "gru"), symmetry=None, **options):
    shared = {
        "num_mini_batches": 1,
        "num_learning_epochs": 2,
        "entropy_coef": 0.05,
        "value_loss_coef": 0.7,
        "schedule": "fixed",
        "max_grad_norm": None,
        "symmetry_cfg": symmetry or symmetry_cfg(),
    }
    return make_ppo(TbpttPPO, num_steps, num_envs, *models, **{**shared, **options})


def live_through(algorithm, seed, done_rate=0.3):
    """Fill the storage; return the states of actor and critic before the first step."""
    return record_states(algorithm, seed, done_rate)[0]


def segments_of(num_steps, length, unit, burn_in):
    if unit == "env":
        return [Segment(0, 0, 0, num_steps, tuple(range(0, num_steps, length)))]
    return [
        Segment(0, max(0, start - burn_in), start, min(start + length, num_steps))
        for start in range(0, num_steps, length)
    ]


@given(
    num_steps=st.integers(2, 7),
    num_envs=st.integers(1, 3),
    done_rate=st.sampled_from([0.0, 0.3, 1.0]),
    models=st.sampled_from(KINDS),
    uses=st.sampled_from(USES),
    num_images=st.integers(1, 2),
    length=st.integers(1, 4),
    unit=st.sampled_from(["env", "window"]),
    burn_in=st.integers(0, 2),
    chunks=st.integers(1, 3),
)
def test_gradients_equal_robots_that_step_side_by_side(
    num_steps, num_envs, done_rate, models, uses, num_images, length, unit, burn_in, chunks
):
    cfg = symmetry_cfg(*uses, num_images=num_images)
    of_unit = {"minibatch_unit": unit, "burn_in_length": burn_in if unit == "window" else 0}
    of_unit["num_micro_batches"] = min(chunks, num_envs)
    algorithm = make(num_steps, num_envs, models, cfg, gradient_length=length, **of_unit)
    reference, segments = (
        MirroredReference(algorithm, num_images),
        segments_of(num_steps, min(length, num_steps), unit, burn_in),
    )
    for seed in range(2):  # the second rollout begins with the mirrored states of the first
        lived = reference.live(live_through(algorithm, seed, done_rate))

        def compare(lived=lived):
            gradient = gradient_of(algorithm.actor, algorithm.critic)
            expected = reference.gradient(lived, segments)
            torch.testing.assert_close(gradient, expected, **EXACT_FLOAT64)
            advantages = algorithm.storage.advantages.clone()
            disturb(algorithm)  # ratios and values leave their clips
            algorithm.storage.advantages.copy_(advantages)

        algorithm.optimizer.step = compare
        algorithm.update()


def test_uses_and_images_each_change_the_gradient():
    variants = [None, *(symmetry_cfg(*uses) for uses in USES), symmetry_cfg(num_images=2)]
    gradients = []
    for cfg in variants:
        algorithm = make(symmetry=cfg)
        if cfg is None:
            algorithm = make_ppo(TbpttPPO, 6, 3, "lstm", "gru", num_mini_batches=1)
        live_through(algorithm, 0)
        gradients.append(gradients_of_update(algorithm)[0])
    for one, other in itertools.combinations(gradients, 2):
        assert not torch.allclose(one, other, rtol=1e-3)


def test_micro_batches_change_nothing_if_episodes_have_weights():
    found = []
    for chunks in (1, 2, 5):
        options = {"num_micro_batches": chunks, "loss_reduction": "episode_mean"}
        algorithm = make(7, 5, symmetry=symmetry_cfg(num_images=2), shuffle_envs=False, **options)
        live_through(algorithm, 0)
        found.append([*gradients_of_update(algorithm), algorithm.metrics["symmetry"]])
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], **EXACT_FLOAT64)


NUM_STEPS, NUM_ENVS, VICTIM = 8, 3, 1


def with_poisoned_image(last_step, models):
    """Return an algorithm whose victim's mirror image meets NaN before a step, and begins there."""
    with_images = mirror(1)

    def poisoned(env, obs, actions):
        obs, actions = with_images(env, obs, actions)
        if last_step and obs is not None and len(obs) == 2 * NUM_STEPS * NUM_ENVS:
            for values in obs.values():
                steps = values.view(2, NUM_STEPS, NUM_ENVS, *values.shape[1:])
                steps[1, :last_step, VICTIM] = torch.nan
        if last_step and actions is not None and len(actions) == 2 * NUM_STEPS * NUM_ENVS:
            actions.view(2, NUM_STEPS, NUM_ENVS, -1)[1, :last_step, VICTIM] = torch.nan
        return obs, actions

    cfg = {**symmetry_cfg(), "data_augmentation_func": poisoned}
    algorithm = make(NUM_STEPS, NUM_ENVS, models, cfg, gradient_length=2)
    live_through(algorithm, 0, done_rate=0.0)
    last_step = last_step or 2
    algorithm.storage.dones[last_step - 1, VICTIM] = 1
    return algorithm


def gradient_on(algorithm, mini_batch):
    algorithm.optimizer.zero_grad()
    add_gradient(algorithm, mini_batch)
    return gradient_of(algorithm.actor, algorithm.critic)


@pytest.mark.parametrize("models", [("lstm", "gru"), ("cnn-gru", "cnn-lstm")])
def test_nan_in_an_episode_of_a_mirrored_robot_reaches_no_other_episode(models):
    late, others = [], []
    for last_step in (0, 2):
        algorithm = with_poisoned_image(last_step, models)
        whole = algorithm.batches.of_envs(torch.arange(NUM_ENVS))
        if last_step:
            assert not torch.isfinite(gradient_on(algorithm, whole)).all()
        others.append(gradient_on(algorithm, algorithm.batches.of_envs(torch.tensor([0, 2]))))
        (group,) = algorithm.batches.groups
        group = tuple(replace(w, loss_start=w.stop) if w.stop <= 2 else w for w in group)
        algorithm.batches.groups = (group,)
        late.append(gradient_on(algorithm, whole))
    assert torch.isfinite(late[0]).all()
    assert torch.equal(*late)
    assert torch.equal(*others)


def test_the_source_of_a_nan_is_found_in_the_mirror_images_and_in_a_divergence():
    algorithm = with_poisoned_image(2, ("lstm", "gru"))
    where = r"mirror images of observation group '\w+' of environments \[1\], first at step 0"
    with pytest.warns(UserWarning, match=where):
        algorithm.update()
    algorithm = make(gradient_length=2, num_micro_batches=3)
    live_through(algorithm, 0)
    algorithm.optimizer.step = lambda: algorithm.actor.mlp[0].weight.data.fill_(torch.nan)
    with pytest.warns(UserWarning, match="after an optimiser step of this update: it diverged"):
        algorithm.update()


@pytest.mark.parametrize("unit", ["env", "window"])
@pytest.mark.parametrize("models", [("lstm", "gru"), ("cnn-gru", "cnn-lstm")])
def test_mirrored_robots_continue_after_an_undone_update(models, unit):
    """Their states belong to the weights that acted, so they do not depend on the update."""
    found = []
    for undone in (False, True):
        algorithm = make(models=models, minibatch_unit=unit, gradient_length=2)
        for seed in range(2):
            live_through(algorithm, seed)
            if undone and seed == 1:
                algorithm.storage.returns[3, 1] = torch.nan
                with pytest.warns(UserWarning, match="An update met NaN"):
                    algorithm.update()
            else:
                algorithm.update()
        found.append(tensors_of(robots_of(algorithm).states))
    for one, other in zip(*found, strict=True):
        assert (one != 0).any()
        torch.testing.assert_close(one, other, **EXACT_FLOAT64)


def test_mirrored_robots_continue_after_an_interrupted_rollout():
    """The steps before the error count."""

    def interrupt(step, *_):
        if step == 4:
            raise KeyboardInterrupt

    whole, interrupted = make(4), make(6)
    live_through(whole, 0)
    whole.update()
    with pytest.raises(KeyboardInterrupt):
        record_states(interrupted, 0, 0.3, interrupt)
    interrupted.train_mode()  # as the runner's learn() does
    found = [tensors_of(robots_of(each).states) for each in (whole, interrupted)]
    torch.testing.assert_close(*found, **EXACT_FLOAT64)


def test_a_nan_that_a_mirrored_robot_has_seen_leaves_its_state():
    algorithm = with_poisoned_image(2, ("lstm", "gru"))
    algorithm.storage.dones[:, VICTIM] = 0
    with pytest.warns(UserWarning, match="An update met NaN"):
        algorithm.update()
    for state in tensors_of(robots_of(algorithm).states):
        assert (state[:, VICTIM] == 0).all()
        assert (state[:, VICTIM - 1] != 0).any()


def tensors_of(states):
    assert set(states) == {"actor", "critic"}
    return [tensor for state in states.values() for tensor in as_tensors(state)]
