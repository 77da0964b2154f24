"""sb3-contrib as a peer: the actor of RecurrentPPO's policy, which has no GRU."""

# Peers are installed outside the environment, so the type checker does not find them.
# pyright: reportMissingImports=false

from importlib.metadata import version
from typing import Any
from unittest import mock

import numpy as np
import torch
from gymnasium.spaces import Box
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RecurrentRolloutBufferSamples, RNNStates
from torch import nn

from scripts.benchmark.case import ACTION_DIM, HIDDEN_DIMS, OBS_DIM, Case
from scripts.benchmark.peers.measure import Peer, build_peer, by_env, rollout

SPACES = tuple(Box(-np.inf, np.inf, (size,), np.float32) for size in (OBS_DIM, ACTION_DIM))


def sequences(case: Case) -> Peer:
    """Run the policy as RecurrentPPO trains it, on episodes that its buffer has cut and padded."""
    samples = _samples(case)
    mask = samples.mask > 0
    inputs = (samples.observations, samples.lstm_states.pi, samples.episode_starts)
    how = "RecurrentPPO's policy on its buffer's padded episodes; padding them is not timed"
    return _build(how, case, inputs, mask, samples.actions[mask])


def rollouts(case: Case) -> Peer:
    """Give the policy the uncut rollout, with resets inside it."""
    obs, labels, starts = (tensor.flatten(0, 1) for tensor in by_env(case))
    state = torch.zeros(1, case.num_envs, case.rnn_hidden_dim, device=case.device)
    how = "RecurrentPPO's policy on uncut rollouts, which it steps through (RecurrentPPO cuts them)"
    return _build(how, case, (obs, (state, state), starts.float()), ..., labels)


def _build(how: str, case: Case, inputs: tuple[Any, ...], kept: Any, labels: torch.Tensor) -> Peer:
    policy = _policy(case)
    layers = [policy.lstm_actor, policy.mlp_extractor.policy_net, policy.action_net]

    def outputs() -> torch.Tensor:
        distribution, _ = policy.get_distribution(*inputs)
        return distribution.mode()[kept]

    return build_peer(f"{version('sb3-contrib')}: {how}", layers, outputs, labels)


def _policy(case: Case) -> RecurrentActorCriticPolicy:
    if case.rnn_type != "lstm":
        raise NotImplementedError(f"RecurrentPPO has no {case.rnn_type.upper()}")
    policy = RecurrentActorCriticPolicy(
        *SPACES,
        lr_schedule=lambda _: 0.0,
        net_arch={"pi": HIDDEN_DIMS, "vf": []},
        activation_fn=nn.ELU,
        lstm_hidden_size=case.rnn_hidden_dim,
        enable_critic_lstm=False,
    )
    return policy.to(case.device)


def _samples(case: Case) -> RecurrentRolloutBufferSamples:
    """Put the rollout through the buffer, with the labels in place of the actions."""
    shape = (case.num_steps, 1, case.num_envs, case.rnn_hidden_dim)
    buffer = RecurrentRolloutBuffer(
        case.num_steps, *SPACES, shape, device=case.device, n_envs=case.num_envs
    )
    drawn, unused = rollout(case), torch.zeros(case.num_envs)
    states = RNNStates(*[(torch.zeros(shape[1:]), torch.zeros(shape[1:]))] * 2)
    for step in zip(drawn.obs, drawn.labels["actions"], drawn.episode_starts, strict=True):
        obs, labels, starts = (tensor.cpu().numpy() for tensor in step)
        buffer.add(obs, labels, unused.numpy(), starts, unused, unused, lstm_states=states)
    # The buffer starts reading at a random sample, which truncates the gradient of one environment.
    with mock.patch.object(np.random, "randint", return_value=0):
        return next(buffer.get())
