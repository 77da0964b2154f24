"""A reference for PPO's truncated gradient, sample by sample, that TbpttPPO has to equal."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from rsl_tbptt.core import hidden_state
from support.helpers import roll_out

ExtraLoss = Callable[[Any, int, slice], torch.Tensor]
"""Returns an extra term of one sample's loss, shape (1,), given the actor after its step, the step
and the environment."""


@dataclass(frozen=True)
class Segment:
    """Steps of one environment, replayed one after the other from the state of the rollout."""

    env: int
    first: int
    stop: int
    cuts: tuple[int, ...] = ()
    """Steps before which the state is detached, in addition to ``first``."""


def whole_envs(num_steps: int, num_envs: int, gradient_length: int) -> list[Segment]:
    cuts = tuple(range(0, num_steps, gradient_length))
    return [Segment(env, 0, num_steps, cuts) for env in range(num_envs)]


def windows(num_steps: int, num_envs: int, gradient_length: int) -> list[Segment]:
    return [
        Segment(env, start, min(start + gradient_length, num_steps))
        for env in range(num_envs)
        for start in range(0, num_steps, gradient_length)
    ]


def roll_out_recording(algorithm: Any, seed: int, done_rate: float) -> list[tuple]:
    """Fill the storage a second time; return the states of actor and critic before each step."""
    roll_out(algorithm, seed, done_rate)
    algorithm.storage.clear()
    return record_states(algorithm, seed + 1, done_rate)


def record_states(
    algorithm: Any, seed: int, done_rate: float, on_step: Callable[..., object] | None = None
) -> list[tuple]:
    """Fill the storage; return the states of actor and critic before each step."""
    states = []

    def record(step, obs, rewards):
        models = (algorithm.actor, algorithm.critic)
        states.append(tuple(hidden_state.clone(model.get_hidden_state()) for model in models))
        if on_step is not None:
            on_step(step, obs, rewards)

    roll_out(algorithm, seed, done_rate, on_step=record)
    # Copies from outside of inference mode may take part in gradients.
    return [tuple(map(hidden_state.clone, each)) for each in states]


def disturb(algorithm: Any) -> None:
    """Move the parameters, so that ratios and values leave their clips, and draw advantages."""
    torch.manual_seed(3)
    with torch.no_grad():
        for model in (algorithm.actor, algorithm.critic):
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    algorithm.storage.advantages.copy_(torch.randn(algorithm.storage.advantages.shape))


def gradient_of(*models: torch.nn.Module) -> torch.Tensor:
    """Return the gradients of the parameters as one vector, zeros where there is none."""
    parameters = [parameter for model in models for parameter in model.parameters()]
    none_as_zeros = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in parameters]
    return torch.cat([gradient.flatten() for gradient in none_as_zeros]).clone()


def gradients_of_update(algorithm: Any) -> list[torch.Tensor]:
    """Run ``update()`` without its optimiser steps; return the gradient before each of them."""
    gradients, max_norm = [], algorithm.options.max_grad_norm
    algorithm.options.max_grad_norm = None
    algorithm.optimizer.step = lambda: gradients.append(
        gradient_of(algorithm.actor, algorithm.critic)
    )
    algorithm.update()
    del algorithm.optimizer.step
    algorithm.options.max_grad_norm = max_norm
    return gradients


def reference_gradient(
    algorithm: Any,
    states: list[tuple],
    segments: Iterable[Segment],
    extra_loss: ExtraLoss | None = None,
) -> torch.Tensor:
    """Return the gradient of the mean loss over the segments' samples, by the models' forward."""
    models = (algorithm.actor, algorithm.critic)
    live = [model.get_hidden_state() for model in models]
    algorithm.optimizer.zero_grad()
    losses = [
        loss for segment in segments for loss in _replay(algorithm, states, segment, extra_loss)
    ]
    torch.stack(losses).mean().backward()
    for model, state in zip(models, live, strict=True):
        model.reset(hidden_state=state)
    return gradient_of(*models)


def _replay(
    algorithm: Any, states: list[tuple], segment: Segment, extra_loss: ExtraLoss | None
) -> list[torch.Tensor]:
    models = (algorithm.actor, algorithm.critic)
    env = slice(segment.env, segment.env + 1)
    for model, state in zip(models, states[segment.first], strict=True):
        model.reset(hidden_state=hidden_state.clone(hidden_state.select_envs(state, env)))
    losses = []
    for t in range(segment.first, segment.stop):
        for model in models:
            if t > segment.first and algorithm.storage.dones[t - 1, segment.env]:
                model.reset()
            if t in (segment.first, *segment.cuts):
                model.detach_hidden_state()
        loss = sample_loss(algorithm, t, env)
        if extra_loss is not None:
            loss = loss + extra_loss(algorithm.actor, t, env).squeeze(0)
        losses.append(loss)
    return losses


def sample_loss(algorithm: Any, t: int, env: slice) -> torch.Tensor:
    """Return PPO's loss of one sample and advance both models by its step."""
    storage, options = algorithm.storage, algorithm.options
    obs, clip = storage.observations[t, env], options.clip_param
    algorithm.actor(obs, stochastic_output=True)
    log_prob = algorithm.actor.get_output_log_prob(storage.actions[t, env])
    ratio = (log_prob - storage.actions_log_prob[t, env, 0]).exp()
    advantage = storage.advantages[t, env, 0]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    value, old_value = algorithm.critic(obs).squeeze(-1), storage.values[t, env, 0]
    target = storage.returns[t, env, 0]
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    error = torch.maximum((value - target).square(), (clipped - target).square())
    entropy = options.entropy_coef * algorithm.actor.output_entropy
    return (options.value_loss_coef * error - gain - entropy).squeeze(0)
