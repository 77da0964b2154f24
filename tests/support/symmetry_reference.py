"""Mirror functions, and a reference that runs each robot of an environment step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.extensions.symmetry import MirroredRobots
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState
from support.ppo_reference import Segment, gradient_of

ENV = object()


def image(number: int, values: Any) -> torch.Tensor:
    """Return the values of the mirror image with a number, of any shape; 0 is the original.

    Vectors have other signs or another order, pictures are flipped along another axis.
    """
    if number == 0:
        return values
    if values.dim() > 3:
        return values.flip(-number)
    signs = values.new_tensor([1.0, -1.0]).repeat(values.shape[-1])[: values.shape[-1]]
    return values * signs if number == 1 else -values.flip(-1)


def mirror(num_images: int) -> Callable[..., Any]:
    """Return a function for ``symmetry_cfg`` that appends a number of mirror images."""
    numbers = range(num_images + 1)

    def with_images(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> Any:
        assert env is ENV
        if obs is not None:
            groups = {
                name: torch.cat([image(i, values) for i in numbers]) for name, values in obs.items()
            }
            obs = TensorDict(groups, batch_size=[len(numbers) * len(obs)])
        if actions is not None:
            actions = torch.cat([image(i, actions) for i in numbers])
        return obs, actions

    return with_images


def symmetry_cfg(
    augmentation: bool = True, mirror_loss: bool = True, num_images: int = 1
) -> dict[str, Any]:
    return {
        "env": ENV,
        "data_augmentation_func": mirror(num_images),
        "use_data_augmentation": augmentation,
        "use_mirror_loss": mirror_loss,
        "mirror_loss_coeff": 0.7,
    }


def images_of(obs: TensorDict, number: int) -> TensorDict:
    """Return observations of a mirror image."""
    return TensorDict(
        {name: image(number, values) for name, values in obs.items()}, batch_size=obs.batch_size
    )


def outputs_of(
    model: Any,
    obs: TensorDict,
    state: HiddenState,
    dones: torch.Tensor,
    steps: Iterable[int],
    cuts: Sequence[int] = (),
) -> Iterator[tuple[int, torch.Tensor]]:
    """Run a model's own forward pass over steps of a rollout; yield each step and its output."""
    for step in steps:
        model.reset(hidden_state=hidden_state.detach(state) if step in cuts else state)
        yield step, model(obs[step], stochastic_output=model.distribution is not None)
        state = cleared(model.get_hidden_state(), dones[step])


def cleared(state: HiddenState, dones: torch.Tensor) -> HiddenState:
    """Return a state, (L, n, H), with zeros where an episode ended."""
    return hidden_state.apply(lambda each: torch.where(dones.view(1, -1, 1), 0.0, each), state)


def robots_of(algorithm: Any) -> MirroredRobots:
    """Return the mirrored robots of an algorithm."""
    (robots,) = (each for each in algorithm.extensions if isinstance(each, MirroredRobots))
    return robots


@dataclass
class Lived:
    """One robot's stream, or that of its mirror image, as the weights that acted see it."""

    obs: TensorDict
    actions: torch.Tensor
    states: list[Any]
    """States of actor and critic before each step."""


@dataclass
class MirroredReference:
    """All robots of a PPO's environments, run one after the other with the models' forward."""

    algorithm: Any
    num_images: int
    carried: dict[int, Any] = field(default_factory=dict)
    """States of actor and critic of each mirror image before the next rollout."""

    @torch.no_grad()
    def live(self, start: tuple[HiddenState, HiddenState]) -> list[Lived]:
        """Run all robots through the stored rollout from their states; carry the last ones on."""
        storage, lived = self.algorithm.storage, []
        dones = storage.dones.squeeze(-1).bool()
        models = (self.algorithm.actor, self.algorithm.critic)
        live_states = [model.get_hidden_state() for model in models]
        for number in range(self.num_images + 1):
            obs = images_of(storage.observations, number)
            actions = image(number, storage.actions)
            before = start if number == 0 else self.carried.get(number, (None, None))
            of_models = []
            for model, state in zip(models, before, strict=True):
                own = [state]
                for t, _ in outputs_of(model, obs, state, dones, range(len(dones))):
                    own.append(cleared(model.get_hidden_state(), dones[t]))
                of_models.append(own)
            *states, self.carried[number] = zip(*of_models, strict=True)
            lived.append(Lived(obs, actions, states))
        for model, state in zip(models, live_states, strict=True):
            model.reset(hidden_state=state)
        return lived

    def gradient(self, lived: list[Lived], segments: Sequence[Segment]) -> torch.Tensor:
        """Return the gradient of the loss over all segments, whose environment is ignored."""
        algorithm = self.algorithm
        models = (algorithm.actor, algorithm.critic)
        live_states = [model.get_hidden_state() for model in models]
        algorithm.optimizer.zero_grad()
        losses = [self._loss(lived, segment) for segment in segments]
        num_samples = algorithm.storage.dones.numel()
        (torch.stack(losses).sum() / num_samples).backward()
        for model, state in zip(models, live_states, strict=True):
            model.reset(hidden_state=state)
        return gradient_of(*models)

    def _loss(self, lived: list[Lived], segment: Segment) -> torch.Tensor:
        """Return the sum over environments and steps of a segment, for all environments."""
        cfg = robots_of(self.algorithm)._options
        dones = self.algorithm.storage.dones.squeeze(-1).bool()
        steps = range(segment.first, segment.stop)
        cuts = (segment.loss_start, *segment.cuts)
        total, means = torch.zeros(()), {}
        for number, robot in enumerate(lived):
            learns = number == 0 or cfg.use_data_augmentation
            share = 1.0 / len(lived) if cfg.use_data_augmentation else 1.0
            actor, critic = self.algorithm.actor, self.algorithm.critic
            state = robot.states[segment.first]
            for t, _ in outputs_of(actor, robot.obs, state[0], dones, steps, cuts):
                if t < segment.loss_start:
                    continue
                means[number, t] = actor.output_mean
                if learns:
                    total = total + share * self._surrogate(robot, t).sum()
                if number == 0:
                    entropy = self.algorithm.options.entropy_coef * actor.output_entropy
                    total = total - entropy.sum()
            for t, values in outputs_of(critic, robot.obs, state[1], dones, steps, cuts):
                if learns and t >= segment.loss_start:
                    total = total + share * self._value_error(t, values).sum()
        if cfg.use_mirror_loss:
            for (number, t), mean in means.items():
                if number > 0:
                    target = image(number, means[0, t].detach())
                    error = (mean - target).square().mean(-1).sum()
                    total = total + cfg.mirror_loss_coeff * error / (len(lived) - 1)
        return total

    def _surrogate(self, robot: Lived, t: int) -> torch.Tensor:
        storage, clip = self.algorithm.storage, self.algorithm.options.clip_param
        advantage = storage.advantages[t].squeeze(-1)
        log_prob = self.algorithm.actor.get_output_log_prob(robot.actions[t])
        # A mirrored action was drawn where the original was, so its density is the original's.
        ratio = (log_prob - storage.actions_log_prob[t].squeeze(-1)).exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)

    def _value_error(self, t: int, values: torch.Tensor) -> torch.Tensor:
        storage, options = self.algorithm.storage, self.algorithm.options
        value, old, clip = values.squeeze(-1), storage.values[t].squeeze(-1), options.clip_param
        target = storage.returns[t].squeeze(-1)
        clipped = old + (value - old).clamp(-clip, clip)
        error = torch.maximum((value - target).square(), (clipped - target).square())
        return options.value_loss_coef * error
