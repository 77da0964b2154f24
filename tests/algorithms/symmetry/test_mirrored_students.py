"""Distillation on mirrored sequences equals the reference on each robot's own sequence."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.helpers import ACTION_DIM, make_distillation, make_obs, roll_out, train
from support.ppo_reference import gradient_of
from support.symmetry_reference import ENV, image, images_of, mirror, symmetry_cfg
from support.tbptt_reference import WeightedSequences, weighted_gradients
from support.tolerances import EXACT_FLOAT64

from rsl_tbptt.algorithms import TbpttDistillation
from rsl_tbptt.core import hidden_state, losses

pytestmark = pytest.mark.usefixtures("float64")

AUGMENTS = partial(symmetry_cfg, mirror_loss=False)
NUM_STEPS, NUM_ENVS = 6, 3


def make(student, num_images=2, **options):
    cfg = AUGMENTS(num_images=num_images)
    options = {"max_grad_norm": None, "symmetry_cfg": cfg, **options}
    return make_distillation(TbpttDistillation, NUM_STEPS, NUM_ENVS, student, **options)


def sequences_of(algorithm, states, num_images):
    """Return the stored rollout of each robot, with the state of each before it."""
    storage, dones = algorithm.storage, algorithm.storage.dones.squeeze(-1).bool().clone()
    labels = storage.privileged_actions
    return [
        WeightedSequences(
            images_of(storage.observations.clone(), number),
            image(number, labels.clone()),
            dones,
            torch.ones(dones.shape),
            states[number],
        )
        for number in range(num_images + 1)
    ]


@torch.no_grad()
def ends_of(model, sequences):
    """Run each sequence with the model's own forward; return the cleared states after it."""
    ends = []
    for each in sequences:
        model.reset(hidden_state=each.state)
        for obs, done in zip(each.obs, each.dones, strict=True):
            model(obs)
            state = model.get_hidden_state()
            model.reset(hidden_state=None if state is None else hidden_state.clear(state, done))
        ends.append(model.get_hidden_state())
    return ends


@pytest.mark.parametrize("student", ["lstm", "gru", "mlp", "cnn-lstm"])
@pytest.mark.parametrize(("length", "num_chunks"), [(2, 1), (4, 3)])
@pytest.mark.parametrize("buffer_rollouts", [0, 1])
def test_gradients_equal_the_reference_over_two_updates(
    student, length, num_chunks, buffer_rollouts
):
    algorithm = make(
        student,
        gradient_length=length,
        num_micro_batches=num_chunks,
        buffer_rollouts=buffer_rollouts,
    )
    states, past, gradients = [None] * 3, [], []
    algorithm.optimizer.step = lambda: gradients.append(gradient_of(algorithm.student))
    for seed in range(3):
        roll_out(algorithm, seed, done_rate=0.3)
        newest = sequences_of(algorithm, states, 2)
        gradients.clear()
        algorithm.update()
        found = [gradient.clone() for gradient in gradients]
        live = algorithm.student.get_hidden_state()
        expected = weighted_gradients(algorithm.student, newest + past, length, length, losses.mse)
        for gradient, want in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient, want, **EXACT_FLOAT64)
        states = ends_of(algorithm.student, newest)
        algorithm.student.reset(hidden_state=live)
        past = newest if buffer_rollouts else []
        buffer = algorithm.experience.buffer
        if buffer is not None:  # else a random part of the newest rollout would stay
            buffer._keys.fill_(2.0)


def test_mirrored_deviations_stay_positive():
    algorithm = make("lstm", loss_type="kl", gradient_length=3)
    assert train(algorithm, 0)["behavior"] > 0
    std = algorithm.experience.newest().labels["std"]
    assert std.shape == (NUM_STEPS, NUM_ENVS, 3, 2)
    assert (std > 0).all()


@pytest.mark.filterwarnings("ignore:An update met NaN")
def test_mirrored_robots_continue_after_an_undone_update():
    found = []
    for label in (0.0, torch.nan):
        algorithm = make("lstm", gradient_length=3, learning_rate=1e-30)
        train(algorithm, 0)
        roll_out(algorithm, 1)
        algorithm.storage.privileged_actions[2, 1] = label
        assert algorithm.update()["skipped_updates"] == (label != 0.0)
        found.append(algorithm.mirrored.states["student"])
    torch.testing.assert_close(*found, **EXACT_FLOAT64)
    assert (found[0][0] != 0).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"symmetry_cfg": symmetry_cfg()}, "use_mirror_loss True, expected True and False"),
        ({"symmetry_cfg": AUGMENTS(False)}, "use_data_augmentation False"),
        ({"auxiliary": {"cue": {"target": "state"}}}, "auxiliary is .* with symmetry_cfg"),
    ],
)
def test_what_distillation_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make("lstm", gradient_length=3, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"num_mini_batches": 2, "num_learning_epochs": 2, "buffer_rollouts": 3},
        {"student": "cnn-lstm", "buffer_rollouts": 2, "buffer_gb": 0.0005},
        {"tail": "drop", "update_length": 2, "gradient_length": 4},
        {"teacher_action_share": 0.5},
    ],
)
def test_other_options_work_with_it(options):
    algorithm = make(**{"student": "lstm", "gradient_length": 3, **options})
    metrics = train(algorithm, *range(4))
    assert (metrics["skipped_updates"], metrics["behavior"] > 0) == (0, True)


def mirror_of_any(env, obs, actions):
    return mirror(1)(env=ENV, obs=obs, actions=actions)


def test_a_second_runner_of_one_config_has_symmetry_although_the_first_failed():
    model = {"class_name": "MLPModel", "hidden_dims": [8]}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.3}
    symmetric = AUGMENTS() | {"data_augmentation_func": mirror_of_any}
    algorithm: dict[str, Any] = {"gradient_length": 0, "symmetry_cfg": symmetric}
    groups = {"student": ["policy"], "teacher": ["state"]}
    cfg = {"num_steps_per_env": 6, "multi_gpu": None, "obs_groups": groups, "algorithm": algorithm}
    env: Any = SimpleNamespace(num_envs=NUM_ENVS, num_actions=ACTION_DIM)

    def construct() -> Any:
        algorithm["class_name"] = TbpttDistillation  # rsl_rl before 5.5 removes it
        models = {"student": {**model, "distribution_cfg": dict(gaussian)}, "teacher": dict(model)}
        return TbpttDistillation.construct_algorithm(make_obs(NUM_ENVS), env, cfg | models, "cpu")

    with pytest.raises(ValueError, match="gradient_length"):
        construct()
    algorithm["gradient_length"] = 6
    for _ in range(2):
        assert construct().mirrored is not None
