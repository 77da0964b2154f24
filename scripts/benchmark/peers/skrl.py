"""skrl as a peer: a recurrent model written as in the examples of its documentation.

skrl leaves the recurrence to the user's model. In training its PPO_RNN gives a model sequences of
samples, the recorded states and the steps at which episodes terminated. The examples run the
recurrent layer from one step with a terminated episode to the next, and clear the states there.
"""

# Peers are installed outside the environment, so the type checker does not find them.
# pyright: reportMissingImports=false

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from skrl.models.torch import DeterministicMixin, Model

from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState
from scripts.benchmark.case import ACTION_DIM, OBS_DIM, Case
from scripts.benchmark.peers.measure import Network, Peer, build_peer, by_env


class RecurrentModel(DeterministicMixin, Model):
    """The network of a case behind skrl's interface."""

    def __init__(self, case: Case) -> None:
        """Build the network."""
        spaces = [Box(-np.inf, np.inf, (size,), np.float32) for size in (OBS_DIM, ACTION_DIM)]
        Model.__init__(
            self, observation_space=spaces[0], action_space=spaces[1], device=case.device
        )
        DeterministicMixin.__init__(self)
        self.sequence_length = case.num_steps
        self.network = Network(case, batch_first=True)

    def compute(
        self, inputs: dict[str, Any], role: str = ""
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Run the network over the sequences of a mini-batch.

        Args:
            inputs: ``observations`` (N * T, D), ``terminated`` (N * T, 1) and ``rnn``, the states
                before each sample, (1, N * T, H) each.
            role: Unused, part of skrl's interface.

        Returns:
            Actions (N * T, A), and the states after the last step.
        """
        obs = inputs["observations"].unflatten(0, (-1, self.sequence_length))
        ends = inputs["terminated"].view(-1, self.sequence_length)
        firsts = [state[:, :: self.sequence_length].contiguous() for state in inputs["rnn"]]
        state: HiddenState = (firsts[0], firsts[1]) if len(firsts) == 2 else firsts[0]
        cuts = (ends[:, :-1].any(0).nonzero().flatten() + 1).tolist()
        latents, first = [], 0
        for stop in [*cuts, self.sequence_length]:
            latent, state = self.network.rnn(obs[:, first:stop], state)
            state = hidden_state.clear(state, ends[:, stop - 1])
            latents.append(latent)
            first = stop
        actions = self.network.mlp(torch.cat(latents, dim=1).flatten(0, 1))
        return actions, {"rnn": hidden_state.as_tensors(state)}


def examples(case: Case) -> Peer:
    """Run the model on the inputs that PPO_RNN would give it, with one sequence per rollout."""
    model = RecurrentModel(case)
    obs, labels, starts = by_env(case)
    ends = torch.cat((starts[:, 1:], torch.zeros_like(starts[:, :1])), dim=1)
    num_states = {"lstm": 2, "gru": 1}[case.rnn_type]
    zeros = torch.zeros(1, starts.numel(), case.rnn_hidden_dim, device=case.device)
    inputs = {
        "observations": obs.flatten(0, 1),
        "terminated": ends.flatten().unsqueeze(-1),
        "rnn": [zeros] * num_states,
    }
    how = "a model as in its PPO_RNN examples, which calls the layer between any resets"
    return build_peer(
        f"{version('skrl')}: {how}",
        [model.network],
        lambda: model.act(inputs)[0],
        labels.flatten(0, 1),
    )
