"""Three plain references for truncated BPTT, which all other code has to equal."""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import as_tensors, from_tensors
from rsl_tbptt.core.rollout import Rollout
from rsl_tbptt.core.scan import CELLS, num_states, recurrent_scan

OBS_DIM, HIDDEN, ACTIONS = 3, 4, 2


class Policy(nn.Module):
    """Recurrent layers with a linear head, in float64."""

    def __init__(self, rnn_type: str = "lstm", num_layers: int = 1, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.rnn = CELLS[rnn_type.upper()](OBS_DIM, HIDDEN, num_layers).double()
        self.head = nn.Linear(HIDDEN, ACTIONS).double()

    def replay(self, obs, state, episode_starts, engine="auto", cuts=()):
        latent, state = recurrent_scan(self.rnn, obs, state, episode_starts, engine, cuts)
        return (self.head(latent),), state

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
            error = policy.head(latent) - rollout.labels["actions"][first:last, env : env + 1]
            total = total + error.square().mean(-1).sum()
    (total / divisor).backward()
    return policy.gradient().clone()


@dataclass
class StepwiseTbptt:
    """Truncated BPTT(k1, k2), step by step with an explicit detach; keeps every step's state."""

    policy: Policy
    rollout: Rollout
    k1: int
    k2: int

    def gradients(self, state, divisor: float) -> list[torch.Tensor]:
        """Return the gradient of each optimiser step, the last group flushed."""
        num_steps = self.rollout.num_steps
        before = {0: self._detached(state)}
        gradients = []
        for first in range(0, num_steps, self.k1):
            last = min(first + self.k1, num_steps)
            self.policy.zero_grad()
            if self.k1 >= self.k2:
                for t in range(first, last):
                    if (t - first) % self.k2 == 0:
                        loss = self._run(t, min(t + self.k2, last), t, before)
                        (loss / divisor).backward()
            else:
                loss = self._run(max(0, last - self.k2), last, first, before)
                (loss / divisor).backward()
            gradients.append(self.policy.gradient().clone())
        return gradients

    def _run(self, start: int, stop: int, loss_start: int, before: dict) -> torch.Tensor:
        starts = self.rollout.episode_starts
        state, total = before[start], torch.zeros((), dtype=torch.float64)
        for t in range(start, stop):
            before[t] = self._detached(state)
            keep = (~starts[t]).unsqueeze(-1)
            masked = tuple(torch.where(keep, s, torch.zeros_like(s)) for s in as_tensors(state))
            masked = masked if len(masked) == 2 else masked[0]
            latent, state = self.policy.rnn(self.rollout.obs[t : t + 1], masked)
            if t >= loss_start:
                error = self.policy.head(latent[0]) - self.rollout.labels["actions"][t]
                total = total + error.square().mean(-1).sum()
        before[stop] = self._detached(state)
        return total

    @staticmethod
    def _detached(state):
        parts = tuple(s.detach() for s in as_tensors(state))
        return parts if len(parts) == 2 else parts[0]


@dataclass
class WeightedSequences:
    """A rollout of n environments with a model of rsl_rl's interface, and its steps' weights."""

    obs: Any
    """Observations, batch size (T, n)."""

    labels: torch.Tensor
    """Shape: (T, n, A)."""

    dones: torch.Tensor
    """True where an episode ends after the step. Shape: (T, n), bool."""

    weights: torch.Tensor
    """Shape: (T, n)."""

    state: Any = None
    """State before the first step; None means zero."""


def weighted_gradients(
    model: Any,
    sequences: list[WeightedSequences],
    k1: int,
    k2: int,
    loss: Any,
    num_loss_steps: int | None = None,
) -> list[torch.Tensor]:
    """Return the gradient of each optimiser step of truncated BPTT(k1, k2) at fixed parameters.

    Each minimises the sum of weight times loss over its steps. The divisor is the number of steps
    of a full group times the average weight of a step, summed over sequences.
    """
    num_steps = num_loss_steps or len(sequences[0].dones)
    mean_weights = sum(each.weights[:num_steps].mean(0).sum() for each in sequences)
    divisor = min(k1, num_steps) * mean_weights
    before: list[dict[int, Any]] = [{0: each.state} for each in sequences]
    gradients = []
    for first in range(0, num_steps, k1):
        last = min(first + k1, num_steps)
        windows = [(max(0, last - k2), last, first)]
        if k1 >= k2:
            windows = [(t, min(t + k2, last), t) for t in range(first, last, k2)]
        model.zero_grad()
        for each, states in zip(sequences, before, strict=True):
            for window in windows:
                (_weighted_loss(model, each, states, *window, loss) / divisor).backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        gradients.append(torch.cat([grad.flatten() for grad in grads]))
    return gradients


def _weighted_loss(
    model: Any,
    sequences: WeightedSequences,
    before: dict[int, Any],
    start: int,
    stop: int,
    loss_start: int,
    loss: Any,
) -> torch.Tensor:
    """Step through a window from the detached state before it; record the state of each step."""
    model.reset(hidden_state=before[start])
    total = torch.zeros(())
    for t in range(start, stop):
        before[t] = hidden_state.detach(model.get_hidden_state())
        if t > 0:
            state = hidden_state.clear(model.get_hidden_state(), sequences.dones[t - 1])
            model.reset(hidden_state=state)
        actions = model(sequences.obs[t])
        if t >= loss_start:
            total = total + (sequences.weights[t] * loss(actions, sequences.labels[t])).sum()
    before[stop] = hidden_state.detach(model.get_hidden_state())
    return total
