"""Actor and critic of PPO as they are replayed, and the rollout as each of them sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from rsl_tbptt.algorithms.batches import Batches
from rsl_tbptt.algorithms.extensions import Extension
from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.extensions.symmetry import ACTOR, CRITIC, MirroredRobots, averaged
from rsl_tbptt.algorithms.frames import FrameObs, deduplicate_frames
from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.algorithms.policy_losses import PolicyLoss, labels_of, mean_and_scale, value_loss
from rsl_tbptt.algorithms.replay import Replay, observations_of, observed_groups
from rsl_tbptt.compat.versions import MLPModel
from rsl_tbptt.core.accumulate import Loss
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.rollout import Batch, Rollout
from rsl_tbptt.models.protocol import action_head, distribution_head


@dataclass(frozen=True)
class Objective:
    """A model, its rollout and the loss that an optimiser step adds up over it."""

    replay: Replay
    rollout: Rollout
    states: HiddenState
    """States before the first steps of segments. Shape: (L, S * N, H), or a pair of them."""

    loss: Loss
    coef: float = 1.0
    """Weight of the loss compared with others."""


class ActorCritic:
    """The replays of actor and critic, on single steps if neither has memory."""

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        options: PpoOptions,
        batches: Batches,
        heads: AuxiliaryHeads,
        mirrored: MirroredRobots | None,
    ) -> None:
        """Choose how the models are replayed.

        Args:
            actor: Policy with a distribution.
            critic: Value function.
            options: Precision, losses and other options.
            batches: The mini-batches.
            heads: The actor's auxiliary heads.
            mirrored: Mirror images of the robots, if any.
        """
        self._options, self._mirrored, self._state_steps = options, mirrored, batches.state_steps
        self.first_replay = FirstReplay()
        """Metrics of the first replay of an update."""
        num_robots = mirrored.num_robots if mirrored else 1
        self._num_augmented = num_robots if mirrored and mirrored.augments else 1
        replay = partial(
            Replay,
            options=options,
            num_envs=batches.num_envs_of_largest,
            window_length=batches.window_length,
        )
        self.actor = replay(
            actor,
            distribution_head,
            heads=heads.outputs,
            first_replay=self.first_replay,
            num_robots=num_robots,
        )
        self.critic = replay(critic, action_head, num_robots=self._num_augmented)
        if mirrored:
            learning = {ACTOR: self.actor, CRITIC: self.critic}
            mirrored.replays = learning if mirrored.augments else {ACTOR: self.actor}
        self.policy_loss = PolicyLoss(actor, options, self.first_replay)

    def rollouts(
        self,
        storage: RolloutStorage,
        states: Sequence[HiddenState],
        extensions: Sequence[Extension],
    ) -> tuple[list[Rollout], Sequence[HiddenState]]:
        """View a full storage, with advantages and returns, as rollouts.

        Args:
            storage: The storage.
            states: Stored states of actor and critic, (L, S * N, H) for S stored steps.
            extensions: Add labels of the actor's loss.

        Returns:
            Rollouts with the observations of the actor, with those of the critic, and with all, and
            the states of actor and critic; of all robots with mirror images.
        """
        assert storage.distribution_params is not None
        dones, stored = storage.dones.squeeze(-1).bool(), storage.observations
        everything = Rollout.from_dones(stored, {}, dones)
        weights = None
        if self._options.loss_reduction == "episode_mean":
            weights = 1.0 / everything.episode_lengths
        advantages = {"advantages": storage.advantages.squeeze(-1)}
        behaviour = {
            **advantages,
            "actions": storage.actions,
            "log_prob": storage.actions_log_prob.squeeze(-1),
            **labels_of("old", storage.distribution_params),
        }
        for extension in extensions:
            behaviour |= extension.labels(dones)
        targets = {"returns": storage.returns, "values": storage.values}
        seen, states = self._seen(stored, states, everything.episode_starts)
        if self._mirrored and self._mirrored.augments:
            behaviour, targets = map(self._mirrored.images_of, (behaviour, targets))
        actor = everything.with_observations(seen[0], behaviour, weights)
        critic = everything.with_observations(seen[1], targets, weights)
        return [actor, critic, everything.with_observations(stored, advantages, weights)], states

    def _seen(
        self, stored: TensorDict, states: Sequence[HiddenState], episode_starts: torch.Tensor
    ) -> tuple[list[TensorDict | FrameObs], Sequence[HiddenState]]:
        """Return observations of actor and critic, (T, N), and their states.

        With mirror images a model that learns from them sees all robots, (T, N, I), and its states
        are (L, S * N, I, H).
        """
        mirrored = self._mirrored
        if mirrored is None:
            seen = [observations_of(each.model, stored) for each in (self.actor, self.critic)]
            deduplicate_frames(*seen)
            return seen, states
        models = [replay.model for replay in mirrored.replays.values()]
        groups = {group for model in models for group in observed_groups(model, stored)}
        obs = mirrored.obs(groups)
        seen = [observations_of(model, obs) for model in models]
        deduplicate_frames(*seen)
        states = mirrored.run(states, seen, episode_starts, self._state_steps)
        if not mirrored.augments:
            seen.append(observations_of(self.critic.model, stored))
            deduplicate_frames(seen[-1])
        return seen, states

    def objectives(
        self,
        rollouts: Sequence[Rollout],
        states: Sequence[HiddenState],
        extensions: Sequence[Extension],
        **normalization: torch.Tensor,
    ) -> tuple[Objective, Objective]:
        """Return the objectives of actor and critic.

        Args:
            rollouts: Results of :meth:`rollouts`.
            states: Results of :meth:`rollouts`.
            extensions: Wrap the actor's loss.
            **normalization: Offset and scale of advantages; see :class:`PolicyLoss`.
        """
        options = self._options
        loss: Loss = partial(self.policy_loss, **normalization)
        for extension in extensions:
            loss = extension.wrap(loss)
        clip = options.clip_param if options.use_clipped_value_loss else None
        of_values: Loss = partial(value_loss, clip=clip)
        if self._num_augmented > 1:
            of_values = averaged(of_values)
        return (
            Objective(self.actor, rollouts[0], states[0], loss),
            Objective(self.critic, rollouts[1], states[1], of_values, options.value_loss_coef),
        )


def normalization(
    batches: Batches,
    segments: Sequence[torch.Tensor],
    num_samples: int,
    everything: Rollout,
    ranks: Ranks,
    *,
    of_advantages: bool,
) -> dict[str, torch.Tensor]:
    """Return what a mini-batch is normalised by, over all ranks, which exchange sums for it.

    Args:
        batches: The mini-batches.
        segments: The segments of this one.
        num_samples: Its samples, over all processes.
        everything: The rollout, with the label ``advantages``.
        ranks: The processes that have a share of the mini-batch.
        of_advantages: Whether advantages are normalised over it.

    Returns:
        "offset" and "scale" of advantages, and "divisor" if samples have weights: their sum. Shape:
        () each. Without weights the divisor is the number of samples.
    """
    if not of_advantages and everything.weights is None:
        return {}
    rows = batches.loss_rows(segments)
    found = {}
    if of_advantages:
        own = everything.rows.labels["advantages"][rows]
        found["offset"], found["scale"] = mean_and_scale(own, num_samples, ranks)
    if everything.rows.weights is not None:
        found["divisor"] = ranks.sum_tensor(everything.rows.weights[rows].sum())
    return found
