"""A reference for auxiliary losses and their truncated gradient, sample by sample."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector

from rsl_tbptt.core import hidden_state
from support import ppo_reference
from support.helpers import roll_out
from support.inside import networks_of_heads

ONE_SGD_STEP: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 1.0,
    "max_grad_norm": None,
    "num_learning_epochs": 1,
    "num_mini_batches": 1,
}
"""With these options the parameters' change equals the gradient."""


@dataclass(frozen=True)
class Past:
    """A stored rollout, and the states of the model before it."""

    obs: Any
    dones: torch.Tensor
    state: Any


def vector(*modules: torch.nn.Module) -> torch.Tensor:
    """Return the parameters as one vector, which is empty without any."""
    parameters = (p.detach().flatten() for module in modules for p in module.parameters())
    return torch.cat([torch.zeros(0), *parameters])


def modules_of(algorithm: Any) -> list[torch.nn.Module]:
    """Return the modules that an update trains, heads last."""
    roles = [role for role in ("student", "actor", "critic") if hasattr(algorithm, role)]
    return [*(getattr(algorithm, role) for role in roles), *networks_of_heads(algorithm)]


def gradient_of_update(algorithm: Any) -> torch.Tensor:
    """Update, and return the change of the parameters."""
    before = vector(*modules_of(algorithm))
    metrics = algorithm.update()
    assert len(metrics) > 1
    return before - vector(*modules_of(algorithm))


def roll_out_distillation(algorithm: Any, seed: int) -> Past:
    """Fill the storage of a distillation, whose teacher has no memory; copy its rollout."""
    roll_out(algorithm, seed, done_rate=0.3)
    storage = algorithm.storage
    state = hidden_state.clone(algorithm.experience.start_state)
    return Past(storage.observations.clone(), storage.dones.squeeze(-1).bool(), state)


def roll_out_by_ppo(algorithm: Any, seed: int) -> Past:
    """Fill the storage, then move the policy away from the one that acted; return the rollout."""
    models = (algorithm.actor, algorithm.critic)
    state = tuple(hidden_state.clone(model.get_hidden_state()) for model in models)
    roll_out(algorithm, seed, done_rate=0.3)
    ppo_reference.disturb(algorithm)
    storage = algorithm.storage
    return Past(storage.observations, storage.dones.squeeze(-1).bool(), state)


def reference_of_distillation(
    algorithm: Any, pasts: list[Past], gradient_length: int = 3
) -> torch.Tensor:
    """Return the gradient of the mean over all samples of the student's and the heads' losses."""

    def loss(past: Past, t: int, env: slice) -> torch.Tensor:
        error = algorithm.student(past.obs[t, env]) - algorithm.teacher(past.obs[t, env]).detach()
        return error.square().mean()

    models = [algorithm.student]
    return _gradient(algorithm, models, pasts, loss, gradient_length)


def reference_of_ppo(algorithm: Any, past: Past, gradient_length: int = 3) -> torch.Tensor:
    """Return the gradient of the mean of PPO's and the heads' losses."""
    models = [algorithm.actor, algorithm.critic]

    def loss(_: Past, t: int, env: slice) -> torch.Tensor:
        return ppo_reference.sample_loss(algorithm, t, env)

    return _gradient(algorithm, models, [past], loss, gradient_length)


def _gradient(
    algorithm: Any,
    models: list[Any],
    pasts: list[Past],
    loss: Callable[[Past, int, slice], torch.Tensor],
    gradient_length: int,
) -> torch.Tensor:
    live = [model.get_hidden_state() for model in models]
    seen: list[torch.Tensor] = []
    hook = models[0].mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    total, num_samples = torch.zeros(()), 0
    for past in pasts:
        num_steps, num_envs = past.dones.shape
        states = past.state if len(models) > 1 else [past.state]
        for env in range(num_envs):
            one = slice(env, env + 1)
            for model, state in zip(models, states, strict=True):
                own = hidden_state.clone(hidden_state.select_envs(state, one))
                model.reset(hidden_state=own)
            for t in range(num_steps):
                for model in models:
                    if t > 0 and past.dones[t - 1, env]:
                        model.reset()
                    if t % gradient_length == 0:
                        model.detach_hidden_state()
                sample = loss(past, t, one).squeeze()
                total = total + sample + _of_heads(algorithm, past, seen[-1].squeeze(0), t, env)
                num_samples += 1
    hook.remove()
    for model, state in zip(models, live, strict=True):
        model.reset(hidden_state=state)
    parameters = [p for module in modules_of(algorithm) for p in module.parameters()]
    gradients = torch.autograd.grad(
        total / num_samples, parameters, allow_unused=True, materialize_grads=True
    )
    return parameters_to_vector(gradients)


def _of_heads(
    algorithm: Any, past: Past, latent: torch.Tensor, t: int, env: int
) -> torch.Tensor | float:
    """Return the weighted sum of the heads' losses on one sample."""
    total: torch.Tensor | float = 0.0
    named = algorithm.options.auxiliary.values()
    for options, network in zip(named, networks_of_heads(algorithm), strict=True):
        output = network(latent.detach() if options.get("detach") else latent)
        loss = _LOSSES[options.get("loss", "mse")]
        target = past.obs[options["target"]][t, env]
        total = total + options.get("coef", 1.0) * loss(output, target)
    return total


def _huber(error: torch.Tensor) -> torch.Tensor:
    return torch.where(error < 1, 0.5 * error.square(), error - 0.5)


def _bce(probability: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -(target * probability.log() + (1 - target) * (1 - probability).log())


_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mse": lambda output, target: (output - target).square().mean(),
    "huber": lambda output, target: _huber((output - target).abs()).mean(),
    "bce": lambda output, target: _bce(output.sigmoid(), target).mean(),
    "support.helpers:absolute_error": lambda output, target: (output - target).abs().mean(),
}
