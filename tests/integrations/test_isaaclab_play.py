"""Isaac Lab's play command clears hidden states where episodes end, and exports act the same."""

import shutil
from typing import Any

import pytest

pytest.importorskip("isaaclab_rl", reason="Isaac Lab 3.0 needs Python 3.12")

import onnxruntime
import torch
from torch import nn

pytestmark = [
    pytest.mark.isaaclab,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

TOLERANCE = 1e-5
"""Tolerance for float32 in another operation order; actions are of order 1."""


@pytest.fixture(scope="module")
def played(page):
    """Observations, actions and dones, each (T, N, ...), and ``starts``, the dones before."""
    seen = torch.load(page("playing").folder / "played.pt")
    seen["starts"] = torch.cat((torch.ones_like(seen["dones"][:1]), seen["dones"][:-1]))
    return seen


@pytest.fixture(scope="module")
def exported(page):
    return page("the student").folder / "exported"


@pytest.fixture(scope="module")
def env(played):
    """An environment with an episode that ended before the last step."""
    ended = played["dones"][:-5].any(0).nonzero().flatten()
    assert len(ended) > 0
    return int(ended[0])


def act(checkpoint, obs, starts):
    """Return the student's actions by plain torch, with its state cleared where episodes start."""
    weights = torch.load(checkpoint, weights_only=True)["student_state_dict"]
    lstm = nn.LSTM(obs.shape[-1], 64)
    lstm.load_state_dict({k.removeprefix("rnn.rnn."): v for k, v in weights.items() if "rnn" in k})
    state = [torch.zeros(1, obs.shape[1], 64)] * 2
    actions = []
    for step, start in zip(obs, starts, strict=True):
        state = [torch.where(start[None, :, None], 0.0, part) for part in state]
        output, state = lstm(step[None], state)
        hidden = nn.functional.elu(
            nn.functional.linear(output[0], weights["mlp.0.weight"], weights["mlp.0.bias"])
        )
        actions.append(nn.functional.linear(hidden, weights["mlp.2.weight"], weights["mlp.2.bias"]))
    return torch.stack(actions).detach()


def difference(actions, expected):
    return float((actions - expected).abs().max())


def test_play_clears_the_state_where_an_episode_ends(page, played, env):
    checkpoint = page("the student").checkpoint
    actions = act(checkpoint, played["obs"], played["starts"])
    assert difference(actions, played["actions"]) < TOLERANCE


def test_without_clearing_the_actions_would_differ(page, played, env):
    only_first = torch.zeros_like(played["starts"])
    only_first[0] = True
    actions = act(page("the student").checkpoint, played["obs"], only_first)
    assert difference(actions, played["actions"]) > 100 * TOLERANCE


def test_torchscript_acts_like_play(exported, played, env):
    policy = torch.jit.load(exported / "policy.pt")
    actions = []
    for obs, start in zip(played["obs"][:, env], played["starts"][:, env], strict=True):
        if start:
            policy.reset()
        actions.append(policy(obs[None])[0])
    assert difference(torch.stack(actions).detach(), played["actions"][:, env]) < TOLERANCE


def test_onnx_does_not_load_without_its_data_file(exported, played, tmp_path):
    assert (exported / "policy.onnx.data").exists()
    alone = shutil.copy(exported / "policy.onnx", tmp_path)
    with pytest.raises(Exception, match=r"policy\.onnx\.data"):
        onnxruntime.InferenceSession(alone)


def test_onnx_acts_like_play(exported, played, env):
    session = onnxruntime.InferenceSession(exported / "policy.onnx")
    names = [entry.name for entry in session.get_inputs()]
    assert names == ["obs", "h_in", "c_in"]
    actions = []
    for obs, start in zip(played["obs"][:, env], played["starts"][:, env], strict=True):
        if start:
            state = [torch.zeros(1, 1, 64).numpy()] * 2
        inputs = dict(zip(names, [obs[None].numpy(), *state], strict=True))
        results: Any = session.run(None, inputs)
        action, *state = results
        actions.append(torch.from_numpy(action[0]))
    assert difference(torch.stack(actions), played["actions"][:, env]) < TOLERANCE
