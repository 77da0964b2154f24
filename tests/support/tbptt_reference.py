"""Two plain references for truncated BPTT, which all other code has to equal."""

import itertools
from typing import Any

import torch
from torch import nn

from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import as_tensors, from_tensors
from rsl_tbptt.core.rollout import Rollout
from rsl_tbptt.core.scan import CELLS, num_states, recurrent_scan

OBS_DIM, HIDDEN, ACTIONS = 3, 4, 2


class Policy(nn.Module):
    """Recurrent layers with a linear head, in float64, also with rsl_rl's interface."""

    def __init__(self, rnn_type: str = "lstm", num_layers: int = 1, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.rnn = CELLS[rnn_type.upper()](OBS_DIM, HIDDEN, num_layers).double()
        self.head = nn.Linear(HIDDEN, ACTIONS).double()

    def replay(self, obs, state, episode_starts, engine="auto", cuts=()):
        latent, state = recurrent_scan(self.rnn, obs, state, episode_starts, engine, cuts)
        return (self.head(latent),), state

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        latent, self.state = self.rnn(obs.unsqueeze(0), self.state)
        return self.head(latent[0])

    def reset(self, hidden_state: Any) -> None:
        self.state = hidden_state

    def get_hidden_state(self) -> Any:
        return self.state

    def zero_state(self, num_envs: int):
        zeros = torch.zeros(self.rnn.num_layers, num_envs, HIDDEN, dtype=torch.float64)
        return from_tensors([zeros] * num_states(self.rnn.mode))

    def random_state(self, num_envs: int, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        shape = (self.rnn.num_layers, num_envs, HIDDEN)
        make = lambda: torch.randn(shape, dtype=torch.float64, generator=generator) * 0.5  # noqa: E731
        return from_tensors([make() for _ in range(num_states(self.rnn.mode))])

    def gradient(self) -> torch.Tensor:
        parameters: list[Any] = list(self.parameters())
        return torch.cat([p.grad.flatten() for p in parameters])


def make_rollout(num_steps: int, num_envs: int, done_rate: float, seed: int = 0) -> Rollout:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs)
    return Rollout.from_dones(
        torch.randn(*shape, OBS_DIM, dtype=torch.float64, generator=generator),
        {"actions": torch.randn(*shape, ACTIONS, dtype=torch.float64, generator=generator)},
        torch.rand(shape, generator=generator) < done_rate,
    )


def full_bptt_by_episode(policy: Policy, rollout: Rollout, state, divisor: float) -> torch.Tensor:
    """Return the gradient of full BPTT: torch's own call on each episode of each environment."""
    policy.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for env in range(rollout.num_envs):
        starts = [t for t in range(rollout.num_steps) if rollout.episode_starts[t, env]]
        bounds = sorted({0, *starts, rollout.num_steps})
        for first, last in itertools.pairwise(bounds):
            begin = policy.zero_state(1)
            if first == 0:
                parts = tuple(s[:, env : env + 1].contiguous() for s in as_tensors(state))
                begin = parts if len(parts) == 2 else parts[0]
            latent, _ = policy.rnn(rollout.obs[first:last, env : env + 1].contiguous(), begin)
            labels = rollout.labels["actions"][first:last, env : env + 1]
            total = total + squared_error(policy.head(latent), labels).sum()
    (total / divisor).backward()
    return policy.gradient().clone()


def stepwise_gradients(
    model: Any,
    rollouts: list[tuple[Rollout, Any]],
    k1: int,
    k2: int,
    divisor: float | None = None,
    num_loss_steps: int | None = None,
) -> list[torch.Tensor]:
    """Return the gradient of each optimiser step of truncated BPTT(k1, k2) at fixed parameters.

    Each step of a rollout is run for itself, from detached states that are kept of every step.

    Args:
        model: A model of rsl_rl's interface.
        rollouts: Rollouts of the label "actions" with the states before them; None means zero.
        k1: Steps between two optimiser steps.
        k2: Steps through which a gradient flows.
        divisor: Of the squared errors' sum. None means that a full group's loss is their mean.
        num_loss_steps: Steps that have a loss; None means all.
    """
    num_steps = num_loss_steps or rollouts[0][0].num_steps
    if divisor is None:
        divisor = min(k1, num_steps) * sum(rollout.num_envs for rollout, _ in rollouts)
    before: list[dict[int, Any]] = [{0: state} for _, state in rollouts]
    gradients = []
    for first in range(0, num_steps, k1):
        last = min(first + k1, num_steps)
        windows = [(max(0, last - k2), last, first)]
        if k1 >= k2:
            windows = [(t, min(t + k2, last), t) for t in range(first, last, k2)]
        model.zero_grad()
        for (rollout, _), states in zip(rollouts, before, strict=True):
            for window in windows:
                (_loss(model, rollout, states, *window) / divisor).backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        gradients.append(torch.cat([grad.flatten() for grad in grads]))
    return gradients


def _loss(
    model: Any, rollout: Rollout, before: dict[int, Any], start: int, stop: int, loss_start: int
) -> torch.Tensor:
    """Step through a window from the detached state before it; record the state of each step."""
    model.reset(hidden_state=before[start])
    total = torch.zeros(())
    for t in range(start, stop):
        before[t] = hidden_state.detach(model.get_hidden_state())
        if t > 0:
            starts = rollout.episode_starts[t].unsqueeze(-1)
            states = as_tensors(model.get_hidden_state())
            cleared = [torch.where(starts, torch.zeros_like(state), state) for state in states]
            model.reset(hidden_state=from_tensors(cleared))
        actions = model(rollout.obs[t])
        if t >= loss_start:
            total = total + squared_error(actions, rollout.labels["actions"][t]).sum()
    before[stop] = hidden_state.detach(model.get_hidden_state())
    return total


def squared_error(actions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over actions."""
    return (actions - labels).square().mean(-1)
