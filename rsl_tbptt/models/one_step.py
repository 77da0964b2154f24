"""One step of one robot: the part of a trained policy that ONNX and TorchScript run.

It is the model's own forward pass, with the state as inputs and outputs. This module has no
postponed annotations, which ``torch.jit.script`` cannot read.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.core.hidden_state import as_tensors, from_tensors
from rsl_tbptt.models.protocol import parts_of

STATES = ("h", "c")
"""Names of a state's tensors; a GRU has only the first."""


class OneStep(nn.Module):
    """Maps observation groups and state to actions, next state and predictions of heads."""

    def __init__(
        self,
        policy: Any,
        groups: Mapping[str, torch.Tensor],
        heads: Mapping[str, nn.Module] | None = None,
    ) -> None:
        """Copy the policy.

        Args:
            policy: A model that follows rsl_rl's interface.
            groups: An observation of each group that it reads, in its order. Shape: (1, ...).
            heads: Auxiliary heads by the names of their outputs.
        """
        super().__init__()
        self.policy = _copied(policy).to("cpu").requires_grad_(False)
        if policy.distribution is not None:
            self.policy.distribution = _DeterministicOutput(self.policy.distribution)
        self.heads = nn.ModuleList(copy.deepcopy([*(heads or {}).values()])).to("cpu")
        self.eval()
        self._groups = {name: torch.zeros_like(each.cpu()) for name, each in groups.items()}
        self._is_joined = False
        state: tuple[torch.Tensor, ...] = ()
        if policy.is_recurrent:
            with torch.no_grad():
                self.policy(TensorDict(self._groups, batch_size=[1]))
            state = as_tensors(self.policy.get_hidden_state())
            self.policy.reset()
        names = STATES[: len(state)]
        self.state = dict(
            zip([f"{n}_in" for n in names], map(torch.zeros_like, state), strict=True)
        )
        """Zero state by input name, (L, 1, H) each; empty without memory."""
        self.output_names = ["actions", *(f"{name}_out" for name in names), *(heads or {})]

    def joined(self) -> "OneStep":
        """Return the same step with one input ``obs``, (1, D), of all groups flattened."""
        step = copy.copy(self)
        step._is_joined = True
        return step

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Zeros for each input, by name and in order."""
        obs = self._groups
        if self._is_joined:
            obs = {"obs": torch.cat([each.flatten(1).float() for each in obs.values()], dim=1)}
        return {**obs, **self.state}

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, for rsl_rl's export."""
        return [*self.inputs]

    def get_dummy_inputs(self) -> tuple[torch.Tensor, ...]:
        """Return zeros in the shapes of all inputs, for rsl_rl's export."""
        return (*self.inputs.values(),)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run a step; inputs and outputs are in the order of their names."""
        num_obs = len(inputs) - len(self.state)
        obs, state = inputs[:num_obs], inputs[num_obs:]
        if self._is_joined:
            obs = self._split(obs[0])
        if state:
            self.policy.reset(hidden_state=from_tensors(state))
        with recorded_latents(self.policy) as latents:
            actions = self.policy(TensorDict(dict(zip(self._groups, obs, strict=True)), [1]))
        after = as_tensors(self.policy.get_hidden_state()) if state else ()
        if state:
            self.policy.reset()  # torch's exporter refuses a model that keeps its inputs
        return actions.float(), *after, *(head(latents[0]) for head in self.heads)

    def _split(self, obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        groups = [*self._groups.values()]
        parts = obs.split([each.numel() for each in groups], dim=1)
        return tuple(
            part.reshape(each.shape).to(each.dtype)
            for part, each in zip(parts, groups, strict=True)
        )


class _DeterministicOutput(nn.Module):
    """The part of a distribution that acts without noise.

    It takes the distribution's place because ``torch.jit.trace`` reads all properties of modules,
    and a distribution's mean or entropy may fail with any error before the first update.
    """

    def __init__(self, distribution: Any) -> None:
        super().__init__()
        try:
            self.deterministic_output = distribution.as_deterministic_output_module()
        except (AttributeError, NotImplementedError):
            self.deterministic_output = distribution.deterministic_output


def _copied(policy: Any) -> Any:
    """Copy a model's layers without its state; its other attributes may belong to a graph."""
    holders = [policy] if policy.distribution is None else [policy, policy.distribution]
    shared = {
        id(value): value
        for holder in holders
        for name, value in vars(holder).items()
        if name not in ("_parameters", "_buffers", "_modules")
    }
    state = policy.get_hidden_state() if policy.is_recurrent else None
    return copy.deepcopy(policy, {**shared, id(state): None})


@contextmanager
def recorded_latents(policy: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the inputs of a policy's head whenever it acts, (N, H) each, in the yielded list.

    It stays empty for a model that runs step by step, which has no auxiliary heads.
    """
    latents: list[torch.Tensor] = []
    parts: Any = parts_of(policy)
    if parts is None:
        yield latents
        return
    if parts.cell is None:
        hook = parts.head.register_forward_pre_hook(lambda _, inputs: latents.append(inputs[0]))
    else:
        hook = parts.cell.register_forward_hook(
            lambda _, __, outputs: latents.append(outputs[0].squeeze(0))
        )
    try:
        yield latents
    finally:
        hook.remove()


class StatefulPolicy(nn.Module):
    """A policy for TorchScript: one input tensor, one output tensor, and the state inside.

    A model's encoder may be any code, so a step is traced. Keeping the state is scripted.
    """

    state: torch.Tensor

    def __init__(self, step: OneStep) -> None:
        """Trace a step."""
        super().__init__()
        stacked_step = _StackedStep(step.joined())
        obs, *state = stacked_step.one.inputs.values()
        stacked = torch.stack(state) if state else torch.zeros(0)
        with warnings.catch_warnings():  # torch's layers check their arguments' shapes
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            self.step: Any = torch.jit.trace(stacked_step, (obs, stacked))
        self.register_buffer("state", stacked)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return actions, (1, A), for observations, (1, D)."""
        actions, state = self.step(obs, self.state)
        self.state = state.detach()  # it would keep the graph of every step since the last reset
        return actions

    @torch.jit.export
    def reset(self) -> None:
        """Start an episode."""
        self.state = torch.zeros_like(self.state)


class _StackedStep(nn.Module):
    """A step whose state is a single tensor, (1 or 2, L, 1, H)."""

    def __init__(self, one: OneStep) -> None:
        super().__init__()
        self.one = one

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        actions, *after = self.one(obs, *state.unbind(0))
        return actions, torch.stack(after) if after else state
