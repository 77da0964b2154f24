"""Replay of rsl_rl's models over a window with explicit state: the bridge from models to the core.

Everything but the recurrence runs once per window, on K * n rows (K steps, n environments).
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict

from rsl_tbptt.algorithms.update.encoding import Encoding
from rsl_tbptt.algorithms.update.frames import FrameObs, frames_apart
from rsl_tbptt.compat.versions import OWN_MODELS, MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.accumulate import Outputs, Replay
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.scan import recurrent_scan
from rsl_tbptt.models.protocol import parts_of

Head = Callable[[MLPModel, torch.Tensor], Outputs]
"""Turns what a model's last layer returns for (rows, ...) into outputs of leading shape (rows,)."""

Further = Callable[[torch.Tensor], Outputs]
"""Further outputs of leading shape (rows,) of what a model's head reads, latents of (rows, H)."""


def action_head(model: MLPModel, mlp_output: torch.Tensor) -> Outputs:
    """Return the deterministic action, shape (rows, A)."""
    if model.distribution is None:
        return (mlp_output,)
    return (model.distribution.deterministic_output(mlp_output),)


def gaussian_head(model: MLPModel, mlp_output: torch.Tensor) -> Outputs:
    """Return mean and standard deviation of the action, shape (rows, A) each."""
    assert model.distribution is not None
    model.distribution.update(mlp_output)
    return model.output_mean, model.output_std


def distribution_head(model: MLPModel, mlp_output: torch.Tensor) -> Outputs:
    """Return what makes the action's distribution, shape (rows, ...): ``distribution.update``'s."""
    return (mlp_output,)


def _no_further(latent: torch.Tensor) -> Outputs:
    return ()


def make_replay(
    model: MLPModel,
    *,
    head: Head,
    scan_engine: str,
    operand_dtype: torch.dtype | None,
    sparing: bool = False,
    further: Further = _no_further,
) -> Replay:
    """Choose how ``model`` is replayed.

    Args:
        model: A model that follows rsl_rl's interface.
        head: ``action_head``, ``gaussian_head`` or ``distribution_head``.
        scan_engine: Engine of ``recurrent_scan``.
        operand_dtype: Autocast dtype of the forward pass, or None for full precision.
        sparing: Whether frame encoders spare memory at the expense of time.
        further: Outputs behind those of ``head``; only of a model that ``parts_of`` takes apart.

    Returns:
        A function of observations (K, n), state, episode starts (K, n) and cuts that returns the
        outputs and the state after the last step, both in the parameters' dtype: window by window
        for models that ``parts_of`` takes apart, step by step for any other recurrent model.
    """
    parts = parts_of(model)
    _warn_of_channels_last(model)
    if scan_engine != "auto" and (parts is None or parts.cell is None):
        warnings.warn(
            f"scan_engine is '{scan_engine}', which has no effect on a {type(model).__name__}: only"
            " the memory of rsl_rl's RNNModel and of a WindowedModel of rsl_tbptt.models is"
            " scanned. Leave it at 'auto'.",
            stacklevel=3,
        )
    run = _replay_stepwise
    if parts is not None:
        run = partial(_replay_window, Encoding(parts, sparing=sparing), scan_engine, further)
    parameter = next(model.parameters())
    autocast = torch.autocast(
        parameter.device.type, dtype=operand_dtype, enabled=operand_dtype is not None
    )

    def replay(
        obs: TensorDict | FrameObs,
        state: HiddenState,
        episode_starts: torch.Tensor,
        cuts: tuple[int, ...] = (),
    ) -> tuple[Outputs, HiddenState]:
        with autocast:
            outputs, state = run(model, obs, state, episode_starts, head, cuts)
        in_dtype = [output.to(parameter.dtype) for output in outputs]
        return tuple(in_dtype), hidden_state.apply(lambda s: s.to(parameter.dtype), state)

    return replay


def _warn_of_channels_last(model: Any) -> None:
    """Warn of images that look like height, width and channels; a CNN reads channels first."""
    of_images = (getattr(model, f"obs_{what}_2d", ()) for what in ("groups", "channels", "dims"))
    for group, channels, (height, width) in zip(*of_images, strict=True):
        if width <= 4 < min(channels, height):
            warnings.warn(
                f"The images '{group}' are of {channels} channels, height {height} and width"
                f" {width}, expected channels first: if {width} is their number, give"
                " images.permute(0, 3, 1, 2).",
                stacklevel=4,
            )


def seen_by(model: MLPModel, obs: TensorDict) -> TensorDict | FrameObs:
    """Return what a replay of ``model`` takes of a rollout's observations, batch size (T, N)."""
    seen, parts = obs.select(*observed_groups(model, obs)), parts_of(model)
    return seen if parts is None or not parts.encoders else frames_apart(seen, parts.encoders)


def observed_groups(model: MLPModel, obs: TensorDict) -> list[str]:
    """Name the observation groups that a replay of ``model`` reads.

    Args:
        model: A model that follows rsl_rl's interface.
        obs: Observations with all groups there are.

    Returns:
        Those of rsl_rl's own models, a CNN's images included, and of a ``RecurrentModel``; all of
        them for a model with a forward pass or latent of its own, which may read any, if it has no
        ``observed_groups`` that say which.
    """
    own_groups: Any = getattr(model, "observed_groups", None)
    if own_groups is not None:
        return list(own_groups)
    shapes: Any = getattr(model, "group_shapes", None)
    if shapes is not None and parts_of(model) is not None:
        return list(shapes)
    own_forward = type(model).forward is not MLPModel.forward
    if own_forward or type(model).get_latent not in [known.get_latent for known in OWN_MODELS]:
        return list(map(str, obs.keys()))
    return [*model.obs_groups, *getattr(model, "obs_groups_2d", ())]


def _replay_window(
    encoding: Encoding,
    scan_engine: str,
    further: Further,
    model: MLPModel,
    obs: TensorDict | FrameObs,
    state: HiddenState,
    episode_starts: torch.Tensor,
    head: Head,
    cuts: tuple[int, ...],
) -> tuple[Outputs, HiddenState]:
    """Replay a model by its parts: encoder on rows, scan over the window, head on rows."""
    shape, parts = episode_starts.shape, encoding.parts
    latent = encoding(obs)
    if parts.cell is not None:
        latent, state = recurrent_scan(parts.cell, latent, state, episode_starts, scan_engine, cuts)
    assert isinstance(latent, torch.Tensor)
    latent = latent.flatten(0, 1)
    outputs = (*head(model, parts.head(latent)), *further(latent))
    return tuple(output.unflatten(0, shape) for output in outputs), state


def _replay_stepwise(
    model: MLPModel,
    obs: TensorDict,
    state: HiddenState,
    episode_starts: torch.Tensor,
    head: Head,
    cuts: tuple[int, ...] = (),
) -> tuple[Outputs, HiddenState]:
    """Replay any model through its public interface, one step at a time; its own state stays."""
    steps = []
    with _state_aside(model), _mlp_outputs(model) as mlp_outputs:
        for t, (step_obs, starts) in enumerate(zip(obs.unbind(0), episode_starts, strict=True)):
            if t in cuts:
                state = hidden_state.detach(state)
            set_state(model, state, starts)
            action = model(step_obs, stochastic_output=head is not action_head)
            if head is gaussian_head:
                steps.append((model.output_mean, model.output_std))
            else:
                steps.append((action if head is action_head else _last_of(mlp_outputs, model),))
            state = model.get_hidden_state()
    return tuple(torch.stack(parts) for parts in zip(*steps, strict=True)), state


def set_state(model: MLPModel, state: HiddenState, episode_starts: torch.Tensor) -> None:
    """Give a model a state, and let it begin episodes where they start, (n,), in its own way.

    Args:
        model: A model that follows rsl_rl's interface.
        state: The state of n environments. It is copied: rsl_rl's models clear theirs in place.
        episode_starts: Shape (n,), bool.
    """
    model.reset(hidden_state=hidden_state.apply(torch.clone, state))
    if state is not None:
        model.reset(episode_starts.long())  # as environments give them


@contextlib.contextmanager
def _state_aside(model: MLPModel) -> Iterator[None]:
    """Give a model back the state that it had, whatever happens inside."""
    state = model.get_hidden_state()
    try:
        yield
    finally:
        model.reset(hidden_state=state)


@contextlib.contextmanager
def _mlp_outputs(model: MLPModel) -> Iterator[list[torch.Tensor]]:
    """Collect what a model's forward passes inside make its distribution from."""
    seen: list[torch.Tensor] = []
    distribution = model.distribution
    if distribution is None:
        yield seen
        return
    update = distribution.update

    def record(mlp_output: torch.Tensor) -> None:
        seen.append(mlp_output)
        update(mlp_output)

    vars(distribution)["update"] = record  # hides the class's method
    try:
        yield seen
    finally:
        del vars(distribution)["update"]


def _last_of(mlp_outputs: list[torch.Tensor], model: MLPModel) -> torch.Tensor:
    """Return the last one.

    Raises:
        NotImplementedError: If there is none.
    """
    if not mlp_outputs:
        raise NotImplementedError(
            f"{type(model).__name__} made no action distribution in its forward pass, expected it"
            " to call `distribution.update`, as rsl_rl's models do with stochastic_output=True."
        )
    return mlp_outputs[-1]
