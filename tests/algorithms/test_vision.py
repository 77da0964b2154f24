"""Images: encoders that actor and critic share, labels of a CNN, models that read any group.

The parity tests check that CNNs learn the same as rsl_rl's.
"""

from typing import Any

import pytest
import torch
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from support.helpers import (
    ACTION_DIM,
    CNN,
    OBS_DIM,
    make_distillation,
    make_model,
    make_obs,
    make_ppo,
    roll_out,
    train,
)
from support.one_pass import ONE_PASS
from tensordict import TensorDict
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parameters_to_vector

from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO
from rsl_tbptt.algorithms.health import obs_scales
from rsl_tbptt.models import CNNRNNModel
from rsl_tbptt.models.protocol import parts_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:Time-outs are bootstrapped with the value"),
    pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate"),
]

T, N = 6, 8
NOISE = {"class_name": "GaussianDistribution", "init_std": 0.3}


def test_a_frozen_actor_keeps_the_encoders_it_shares():
    source = make_distillation(TbpttDistillation, T, N, student="cnn", gradient_length=3)
    algorithm = make_ppo(TbpttPPO, T, N, "cnn", "sharing", critic_warmup_iterations=1)
    algorithm.load(source.save(), None, strict=True)
    critic = parameters_to_vector(algorithm.critic.mlp.parameters())
    for held in (True, False):
        actor = parameters_to_vector(algorithm.actor.parameters())
        train(algorithm, 0)
        assert torch.equal(actor, parameters_to_vector(algorithm.actor.parameters())) == held
    assert not torch.equal(critic, parameters_to_vector(algorithm.critic.mlp.parameters()))


class Peeking(MLPModel):
    """A user's model that reads a group which none of rsl_rl's attributes names."""

    def get_latent(self, obs, masks=None, hidden_state=None):
        return super().get_latent(obs) + obs["depth"].flatten(1)[:, :OBS_DIM]


@pytest.mark.parametrize("role", ["student", "actor"])
def test_a_users_model_may_read_any_group(role):
    if role == "student":
        algorithm = make_distillation(TbpttDistillation, T, N, "mlp", "cnn", gradient_length=3)
    else:
        algorithm = make_ppo(TbpttPPO, T, N, "mlp", "cnn")
    model = getattr(algorithm, role)
    model.__class__ = Peeking
    before = parameters_to_vector(model.parameters())
    train(algorithm, 0)
    assert not torch.equal(before, parameters_to_vector(model.parameters()))


def test_batch_normalisation_sees_each_step_once():
    cnn: Any = CNN | {"norm": "batch"}
    algorithm = make_distillation(
        TbpttDistillation, T, N, "cnn-lstm", student_kwargs={"cnn_cfg": cnn}, gradient_length=3
    )
    modules = algorithm.student.modules()
    norm: Any = next(each for each in modules if isinstance(each, _BatchNorm))
    roll_out(algorithm, 0)
    assert norm.num_batches_tracked == T
    algorithm.update()
    assert norm.num_batches_tracked == 2 * T


def of_images(images, **options):
    """Build a model that sees only these images."""
    obs = TensorDict({"camera": images}, batch_size=[len(images)])
    options = {"cnn_cfg": CNN, "hidden_dims": [8], "rnn_hidden_dim": 6} | options
    return CNNRNNModel(obs, {"student": ["camera"]}, "student", ACTION_DIM, **options)


def test_a_kernel_larger_than_the_image_is_named():
    cnn_cfg = {"output_channels": [2, 2], "kernel_size": [3, 7]}
    with pytest.raises(ValueError, match=r"images .*\{'camera': \(1, 8, 6\)\}.*see kernel_size"):
        of_images(torch.rand(N, 1, 8, 6), cnn_cfg=cnn_cfg)


def test_bytes_without_a_scale_are_named():
    images = torch.zeros(N, 1, 8, 8, dtype=torch.uint8)
    with pytest.warns(UserWarning, match="image_scale is 1.0, expected 1 / 255 .* 'camera'"):
        of_images(images)
    of_images(images, image_scale=1 / 255)
    of_images(images.bool())


def test_channels_that_come_last_are_named():
    def build(*shape):
        obs = make_obs(N, images=True)
        obs["camera"] = torch.rand(N, *shape)
        student = make_model("student", "cnn-lstm", N, seed=1, obs=obs)
        teacher = make_model("teacher", "mlp", N, seed=2)
        storage = RolloutStorage("distillation", N, T, obs, [ACTION_DIM], "cpu")
        TbpttDistillation(student, teacher, storage, gradient_length=3, **ONE_PASS)

    with pytest.warns(UserWarning, match="images 'camera' are of 8 channels, height 9 and width 3"):
        build(8, 9, 3)
    build(3, 4, 4)


def test_images_are_measured_as_the_cnn_sees_them():
    model = of_images(torch.full((N, 1, 8, 8), 255, dtype=torch.uint8), image_scale=0.5)
    obs = TensorDict({"camera": torch.full((N, 1, 8, 8), 200, dtype=torch.uint8)}, batch_size=[N])
    assert obs_scales({"actor": model}, obs) == {"obs_scale/actor/camera": pytest.approx(100.0)}


def test_frames_with_dropout_are_encoded_step_by_step():
    """Parts that are recomputed for their gradient would draw other random numbers."""
    model: Any = make_model("student", "cnn-lstm", N, seed=0)
    assert parts_of(model) is not None
    model.cnns["camera"].append(nn.Dropout2d(0.5))
    assert parts_of(model) is None
