"""A replay by a model's parts equals the model itself, frame by frame."""

import inspect
from typing import Any

import pytest
import torch
from rsl_rl.models import CNNModel, RNNModel
from support.helpers import ACTION_DIM, CNN, IMAGES, make_model, make_obs
from support.tolerances import EXACT_FLOAT64
from tensordict import TensorDict

from rsl_tbptt.algorithms.frames import deduplicate_frames, unique_frames
from rsl_tbptt.algorithms.replay import Policy, Replay, observations_of
from rsl_tbptt.core import recompute
from rsl_tbptt.models import CNNRNNModel, RecurrentModel

T, N = 12, 5

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(
    ("ours", "theirs"), [(RecurrentModel, [RNNModel]), (CNNRNNModel, [RNNModel, CNNModel])]
)
def test_our_models_name_the_arguments_of_rsl_rls(ours, theirs):
    """Some runners pass only the options that a signature names."""
    names = {name for model in theirs for name in inspect.signature(model).parameters}
    assert names <= {*inspect.signature(ours).parameters}


NO_SAMPLES: Any = None


def stepwise(model):
    """Return a replay that does not split the model into parts."""
    run = Replay(model, needs_distribution=True)
    run._parts = None
    return run


def held(obs, periods):
    """Make environment n repeat each frame for ``periods[n]`` steps, starting at any of them."""
    for env, period in enumerate(periods):
        for step in range(1, T):
            if (step + env) % period:
                for group in IMAGES:
                    obs[group][step, env] = obs[group][step - 1, env]
    return obs


def seen_by(model, obs):
    obs = observations_of(model, obs)
    deduplicate_frames(obs)
    return obs


def rollout(periods=(1,) * N):
    torch.manual_seed(0)
    steps: Any = [make_obs(N, images=True) for _ in range(T)]  # typed as a list of tensors in torch
    obs: Any = torch.stack(steps)
    starts = torch.rand(T, N) < 0.3
    state = (torch.randn(1, N, 6), torch.randn(1, N, 6))
    return held(obs, periods), starts, state


def gradient(model, replay, *window):
    model.zero_grad()
    policy = Policy(replay, replay(*window)[0], NO_SAMPLES)
    (policy.mean.square().sum() + policy.std.sum()).backward()
    return policy.mean, torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )


@pytest.mark.parametrize(
    ("at_once", "kept"), [(1, 0), (3000, 0), (3000, 50_000), (3000, 2**24), (2**24, 0)]
)
@pytest.mark.parametrize("periods", [(1,) * N, (5,) * N, (1, 2, 3, 5, 20)])
@pytest.mark.parametrize("window", [slice(0, T), slice(3, 8)])
def test_parts_and_repeated_frames_give_the_models_results(
    monkeypatch, at_once, kept, periods, window
):
    model = make_model("student", "cnn-lstm", N, seed=1)
    obs, starts, state = rollout(periods)
    monkeypatch.setitem(recompute._AT_ONCE, "cpu", at_once)
    monkeypatch.setitem(recompute._KEPT, "cpu", kept)
    replay = Replay(model, needs_distribution=True)
    seen = seen_by(model, obs)
    found = gradient(model, replay, seen[window], state, starts[window])
    expected = gradient(model, stepwise(model), obs[window], state, starts[window])
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, **EXACT_FLOAT64)


@pytest.mark.parametrize("kind", ["cnn", "cnn-lstm"])
def test_a_frame_is_encoded_once(monkeypatch, kind):
    model: Any = make_model("student", kind, N, seed=1)
    obs, starts, state = rollout((5,) * N)
    seen = seen_by(model, obs)
    rows = []
    forward = type(model.cnns["camera"]).forward
    monkeypatch.setattr(
        type(model.cnns["camera"]),
        "forward",
        lambda cnn, frames: rows.append(len(frames)) or forward(cnn, frames),
    )
    replay = Replay(model, needs_distribution=True)
    replay(seen, state, starts)  # measures the memory of a frame
    rows.clear()
    replay(seen, state, starts)
    shown, _ = unique_frames(seen.steps["camera"])
    assert rows == [len(shown)] * 2
    assert len(shown) < 0.3 * T * N


@pytest.mark.parametrize(("num_rows", "num_again"), [(128, 0), (129, 64), (200, 128), (512, 384)])
def test_parts_that_do_not_fit_are_run_again(monkeypatch, num_rows, num_again):
    layers = [torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.ELU(), torch.nn.Flatten()]
    encoder = torch.nn.Sequential(*layers, torch.nn.Linear(2 * 8 * 8, 4))
    frames, rows = torch.randn(num_rows, 1, 8, 8), []
    per_row = recompute.graph_bytes_per_row(encoder, frames[:2])
    monkeypatch.setitem(recompute._AT_ONCE, "cpu", 64 * per_row)
    monkeypatch.setitem(recompute._KEPT, "cpu", 128 * per_row)

    def encode(part):
        rows.append(len(part))
        return encoder(part)

    features = recompute.in_parts(encode, frames, per_row)
    torch.testing.assert_close(features, encoder(frames), **EXACT_FLOAT64)
    assert sum(rows) == num_rows
    rows.clear()
    features.sum().backward()
    assert sum(rows) == num_again


def test_without_an_encoder_it_is_rsl_rls_model():
    obs, groups = make_obs(N), {"student": ["policy"]}
    options = {"hidden_dims": [8], "rnn_type": "gru", "rnn_hidden_dim": 6}
    ours, theirs = (
        each(obs, groups, "student", ACTION_DIM, **options) for each in (RecurrentModel, RNNModel)
    )
    ours.load_state_dict(theirs.state_dict())
    for _ in range(3):
        assert torch.equal(ours(obs), theirs(obs))


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("kind", ["sru", "cnn-lstm"])
def test_a_model_in_rsl_rls_export_keeps_its_state_until_a_reset_and_no_graph(kind):
    model: Any = make_model("student", kind, 1, seed=1).eval()
    exported = torch.jit.script(model.as_jit())
    for step in range(4):
        if step == 2:
            model.reset()
            exported.reset()
        obs = make_obs(1, images=True)
        joined = torch.cat([obs[group].flatten(1) for group in model.group_shapes], dim=1)
        actions = exported(joined.float().requires_grad_())
        torch.testing.assert_close(actions, model(obs).float())
        assert not exported.state.requires_grad


def test_bytes_are_stored_as_bytes_and_scaled():
    torch.manual_seed(0)
    obs = TensorDict({"camera": torch.randint(256, (N, 2, 6, 5), dtype=torch.uint8)}, [N])
    options = {"cnn_cfg": CNN, "hidden_dims": [8], "rnn_hidden_dim": 6}
    model = CNNRNNModel(
        obs, {"student": ["camera"]}, "student", ACTION_DIM, image_scale=1 / 255, **options
    )
    scaled = TensorDict({"camera": obs["camera"] / 255}, [N])
    bytes_seen = model(obs)
    model.reset()
    model.image_scale = 1.0
    torch.testing.assert_close(bytes_seen, model(scaled))


def test_a_cell_that_is_not_registered_is_named():
    with pytest.raises(ValueError, match=r"rnn_type is 'mgu', expected one of \['lstm', 'gru'"):
        make_model("student", "cnn-lstm", N, seed=1, rnn_type="mgu")
    with pytest.raises(ValueError, match="rnn_type is 'None', expected one of"):
        make_model("student", "cnn-lstm", N, seed=1, rnn_type=None)


@pytest.mark.parametrize("options", [{"hidden_dims": [-4]}, {"rnn_hidden_dim": -3}])
def test_sizes_below_one_are_named_beside_the_images(options):
    with pytest.raises(ValueError, match=r"Sizes in hidden_dims, rnn_hidden_dim and .* positive"):
        make_model("student", "cnn-lstm", N, seed=1, **options)
