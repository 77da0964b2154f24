"""A subclass's overrides take effect everywhere: in the rollout, its replay and the exports."""

from typing import Any

import pytest
import support.cases  # noqa: F401  (puts the examples on the path)
import torch
from bottleneck import BottleneckModel
from rsl_rl.models import CNNModel, MLPModel, RNNModel
from support.helpers import ACTION_DIM, CNN, IMAGES, hold_frames, make_obs
from torch import nn

from rsl_tbptt.algorithms.frames import deduplicate_frames
from rsl_tbptt.algorithms.replay import Policy, Replay, observations_of
from rsl_tbptt.core import hidden_state
from rsl_tbptt.models import CNNRNNModel, RecurrentModel
from rsl_tbptt.models.protocol import parts_of

T, N = 7, 3
TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; outputs are of order 1."""
NO_SAMPLES: Any = None


def doubling(name):
    """Return a mixin whose method of that name returns twice the original result."""

    def method(self, *args, **kwargs):
        return 2.0 * getattr(super(mixin, self), name)(*args, **kwargs)

    mixin: Any = type(f"Doubled_{name}", (), {name: method})
    return mixin


class Forward:
    def forward(self, obs, *args, **kwargs):
        return super().forward(obs.apply(lambda each: 2.0 * each), *args, **kwargs)


class Cell:
    def build_encoder(self, obs):
        super().build_encoder(obs)
        num_features = 25 if isinstance(self, CNNModel) else 5
        self.memory = nn.GRU(num_features, 6, num_layers=2)

    @property
    def cell(self):
        return self.memory


class Encoders:
    @property
    def encoders(self):
        return {
            group: lambda frames, encoder=encoder: 2.0 * encoder(frames)
            for group, encoder in super().encoders.items()
        }


class Begin:
    """Episodes begin in another state than zero."""

    def reset(self, dones=None, hidden_state=None):
        super().reset(dones, hidden_state)
        if dones is not None:
            for tensor in self.rnn.hidden_state:
                tensor[:, dones == 1] = 0.5


class State:
    """The state is kept in another form."""

    def reset(self, dones=None, hidden_state=None):
        super().reset(dones, hidden_state and tuple(0.5 * tensor for tensor in hidden_state))

    def get_hidden_state(self):
        state = super().get_hidden_state()
        return state and tuple(2.0 * tensor for tensor in state)


class OwnRnn:
    """rsl_rl's RNN is replaced by a subclass."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)

        class Rnn(type(self.rnn)):
            def forward(self, *args):
                return 2.0 * super().forward(*args)

        self.rnn.__class__ = Rnn


OF_OURS = {
    "nothing": (),
    "head": (doubling("head"),),
    "features": (doubling("features"),),
    "encode": (doubling("encode"),),
    "get_latent": (doubling("get_latent"),),
    "encode and get_latent": (doubling("encode"), doubling("get_latent")),
    "head and get_latent": (doubling("head"), doubling("get_latent")),
    "forward": (Forward,),
    "cell": (Cell,),
    "reset": (Begin,),
    "get_hidden_state": (State,),
}
OF_SEEING = {"encoders": (Encoders,), "_encode_frames": (doubling("_encode_frames"),)}
MODELS = {
    **{f"RecurrentModel {name}": (*own, RecurrentModel) for name, own in OF_OURS.items()},
    **{f"CNNRNNModel {name}": (*own, CNNRNNModel) for name, own in (OF_OURS | OF_SEEING).items()},
}


class DoubledMlp(doubling("get_latent"), MLPModel):
    """A class between a model of rsl_rl's and its base."""


class Declared(RNNModel):
    """Declares a head that rsl_rl's forward pass does not call."""

    @property
    def cell(self):
        return self.rnn.rnn

    def encode(self, obs):
        return 2.0 * obs["policy"]

    def head(self, latent):
        return 2.0 * self.mlp(latent)

    def get_latent(self, obs, masks=None, hidden_state=None):
        return self.rnn(self.encode(obs)).squeeze(0)


class Narrow(BottleneckModel):
    def __init__(self, *args, **options):
        super().__init__(*args, bottleneck_dim=4, **options)


MODELS_OF_RSL_RL = {
    "RNNModel of the examples": (Narrow,),
    "declared parts": (Declared,),
    "declared parts encode and get_latent": (doubling("encode"), doubling("get_latent"), Declared),
    "MLPModel get_latent": (doubling("get_latent"), MLPModel),
    "MLPModel forward": (Forward, MLPModel),
    "RNNModel get_latent": (doubling("get_latent"), RNNModel),
    "RNNModel forward": (Forward, RNNModel),
    "RNNModel base": (RNNModel, DoubledMlp),
    "RNNModel reset": (Begin, RNNModel),
    "RNNModel get_hidden_state": (State, RNNModel),
    "RNNModel rnn": (OwnRnn, RNNModel),
    "CNNModel get_latent": (doubling("get_latent"), CNNModel),
    "CNNModel base": (CNNModel, DoubledMlp),
}


def build(bases) -> Any:
    model_class: Any = type("Model", bases, {})
    sees = issubclass(model_class, CNNModel)
    torch.manual_seed(1)
    options: dict[str, Any] = {"cnn_cfg": CNN} if sees else {}
    if issubclass(model_class, (RecurrentModel, RNNModel)):
        options["rnn_hidden_dim"] = 6
    groups = {"student": ["policy", *(IMAGES if sees else ())]}
    obs = make_obs(N, images=sees)
    return model_class(obs, groups, "student", ACTION_DIM, hidden_dims=[8], **options).eval()


@torch.no_grad()
def rollout(model):
    """Act for some steps, after a few that give the memory a state."""
    observations, actions, starts = [], [], torch.zeros(T + 1, N, dtype=torch.bool)
    starts[2, 0] = starts[4] = True
    on_step = hold_frames(3)
    for _ in range(2):
        model(make_obs(N, images=True))
    state = hidden_state.clone(model.get_hidden_state())
    for t in range(T):
        obs = make_obs(N, images=True)
        on_step(t, obs)
        observations.append(obs)
        actions.append(model(obs))
        if model.is_recurrent:
            model.reset(starts[t + 1].long())
    stacked: Any = torch.stack(observations)
    return stacked, state, starts[:T], torch.stack(actions)


@pytest.mark.parametrize(
    "bases", (MODELS | MODELS_OF_RSL_RL).values(), ids=(MODELS | MODELS_OF_RSL_RL).keys()
)
def test_the_trained_network_is_the_one_that_acted(bases):
    model = build(bases)
    obs, state, starts, actions = rollout(model)
    seen = observations_of(model, obs)
    deduplicate_frames(seen)
    replay = Replay(model)
    outputs, _ = replay(seen, state, starts)
    replayed = Policy(replay, outputs, NO_SAMPLES).mean
    torch.testing.assert_close(replayed, actions, atol=TOLERANCE, rtol=TOLERANCE)
    parameters = [p for p in model.parameters() if p.requires_grad]
    replayed.sum().backward()
    found = [p.grad for p in parameters]
    steps = []
    for t in range(T):
        model.reset(hidden_state=hidden_state.apply(torch.clone, state))
        model.reset(starts[t].long())
        steps.append(model(obs[t]))
        state = model.get_hidden_state()
    sums = torch.stack(steps).sum()
    expected = torch.autograd.grad(sums, parameters, allow_unused=True)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, atol=10 * TOLERANCE, rtol=TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("bases", MODELS.values(), ids=MODELS.keys())
def test_the_exported_network_is_the_one_that_acts(bases):
    model = build(bases)
    exported, state = model.as_onnx(), None
    for _ in range(3):
        obs = make_obs(1, images=True)
        inputs = [obs[group] for group in model.group_shapes]
        state = state or exported.get_dummy_inputs()[len(inputs) :]
        action, *state = exported(*inputs, *state)
        torch.testing.assert_close(action, model(obs), atol=TOLERANCE, rtol=TOLERANCE)


def test_only_a_changed_forward_pass_is_run_step_by_step():
    slow = {name for name, bases in MODELS.items() if parts_of(build(bases)) is None}
    changed = ("features", "get_latent", "forward", "reset", "get_hidden_state")
    assert slow == {name for name in MODELS if name.endswith(changed)}


def test_a_bottleneck_hands_few_bounded_numbers_on():
    model = build((Narrow,))
    before = nn.Sequential(*model.mlp)[:-1](100.0 * torch.randn(N, 6))
    assert before.shape == (N, 4)
    assert before.abs().max() <= 1
