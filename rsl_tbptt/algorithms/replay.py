"""Replay of models for updates: whole windows, recurrent layers as a scan, each frame once.

Everything but the recurrent layers runs once per window, on K * n rows (K steps, n environments).
A model whose parts are not known is run step by step.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.frames import (
    FrameObs,
    in_convolution_layout,
    separate_frames,
    steps_of,
    unique_frames,
)
from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.algorithms.option_checks import OptionGroup
from rsl_tbptt.compat.versions import OWN_MODELS, MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.accumulate import (
    Loss,
    Outputs,
    accumulate_group,
    best_num_micro_batches,
    best_num_windows,
    bytes_per_sample,
)
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.recompute import graph_bytes_per_row, in_parts
from rsl_tbptt.core.rollout import Batch, Rollout
from rsl_tbptt.core.scan import check_engine, recurrent_scan, unchanged_weights
from rsl_tbptt.core.windows import Group
from rsl_tbptt.models.protocol import FrameEncoder, Head, action_head, gaussian_head, parts_of


def _check_engine(_: str, value: str) -> None:
    check_engine(value)


@dataclass(kw_only=True)
class ReplayOptions(OptionGroup):
    """How models are replayed."""

    scan_engine: Annotated[str, _check_engine] = "auto"
    """How recurrent layers run over a window: an engine of docs/concepts/replay.md#scan-engines.

    ``"auto"`` chooses one for the device and tests it there first.
    """

    use_mixed_precision: bool = False
    """Whether the update's matrix products run in bfloat16.

    Parameters, state and gradients stay in float32.
    """


class Replay:
    """A model that is replayed over windows in micro-batches, and the sum of its gradients."""

    def __init__(
        self,
        model: MLPModel,
        head: Head,
        *,
        options: ReplayOptions | None = None,
        num_envs: int = 1,
        window_length: int = 1,
        heads: Callable[[torch.Tensor], Outputs] | None = None,
        first_replay: FirstReplay | None = None,
    ) -> None:
        """Choose how the model is replayed.

        Args:
            model: A model that follows rsl_rl's interface.
            head: Outputs to return: ``action_head``, ``gaussian_head`` or ``distribution_head``.
            options: The algorithm's: scan engine, precision and memory. None takes the defaults.
            num_envs: Environments of the largest mini-batch.
            window_length: Steps of the longest window.
            heads: Maps latents, which the model's own head reads, to more outputs: (rows, H) to
                (rows, D) each.
            first_replay: Records the outputs of the recurrent layers.
        """
        options = options or ReplayOptions()
        self.model, self._head, self._heads = model, head, heads
        self.parameters: list[nn.Parameter] = list(model.parameters())
        """Parameters of the model alone."""
        self._like = next(iter(self.parameters), torch.empty(0))  # a teacher may have none
        self._parts = parts_of(model)
        self._engine = options.scan_engine
        self._num_envs, self._window_length = num_envs, window_length
        self._bytes_per_sample = bytes_per_sample(model)
        self._bytes_per_frame: dict[str, int] = {}
        has_memory = self._parts is not None and self._parts.cell is not None
        self._sees_frames = self._parts is not None and bool(self._parts.encoders)
        self._first_replay = first_replay if has_memory else None
        self._runs_at_once = self._parts is not None and not has_memory and window_length == 1
        self._autocast = torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=options.use_mixed_precision
        )
        _warn_of_channels_last(model)
        if self._engine != "auto" and not has_memory:
            warnings.warn(
                f"scan_engine is '{self._engine}', which has no effect on a"
                f" {type(model).__name__}: only the memory of rsl_rl's RNNModel and of a"
                " WindowedModel of rsl_tbptt.models is scanned. Leave it at 'auto'.",
                stacklevel=4,
            )

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self._like.device

    def accumulate(
        self,
        group: Group,
        rollout: Rollout | Batch,
        state: HiddenState,
        loss: Loss,
        divisor: float | torch.Tensor,
        *,
        num_micro_batches: int,
        coef: float = 1.0,
    ) -> tuple[HiddenState, dict[str, torch.Tensor]]:
        """Add the gradient of one optimiser step's loss; see ``core.accumulate``.

        Args:
            group: Windows of the optimiser step, in time order.
            rollout: The rollout, or a batch of one.
            state: State before the first window. Shape: (L, N, H), or a pair of them.
            loss: The loss.
            divisor: M, the divisor of the weighted sum of per-sample losses. Shape: ().
            num_micro_batches: Minimum number of micro-batches, which run one after the other.
            coef: Weight of the loss compared with others.

        Returns:
            The detached state after the group, and the sums of the loss's reported values.
        """
        least = self.least_micro_batches(rollout.num_envs)
        with unchanged_weights():
            return accumulate_group(
                group,
                rollout,
                state,
                self,
                loss,
                divisor,
                coef=coef,
                num_micro_batches=max(num_micro_batches, least),
                windows_at_once=self._windows_at_once,
            )

    def check_gradient(self, losses: str) -> None:
        """Check that losses have reached the model, right after the first :meth:`accumulate`.

        A frozen model has nothing to reach, and a loss times 0 reaches it with zeros.

        Args:
            losses: The losses in the message, by the names of their options.

        Raises:
            ValueError: If no parameter has a gradient.
        """
        learned = [each for each in self.parameters if each.requires_grad]
        if learned and all(each.grad is None for each in learned):
            model, distribution = type(self.model).__name__, type(self.model.distribution).__name__
            raise ValueError(
                f"The gradient of {losses} reaches no parameter of the {model} (distribution:"
                f" {distribution}), expected one that does: nothing would be learned. Look for"
                " argmax, rounding, detach() or no_grad() in its forward pass."
            )

    def unrecordable_reason(self) -> str | None:
        """Return why a step of this model cannot be recorded as one CUDA graph, or None."""
        name = type(self.model).__name__
        if self._parts is None:
            return f"a {name} runs step by step"
        if self._sees_frames:
            return f"a {name} encodes each frame once, and the host waits for their number"
        if self._engine == "reference":
            return "scan_engine is 'reference'"
        return None

    def least_micro_batches(self, num_envs: int) -> int:
        """Return the least number of micro-batches for ``num_envs`` environments."""
        if self._runs_at_once:
            return 1
        return best_num_micro_batches(
            num_envs,
            self._window_length,
            self._bytes_per_sample,
            self.device,
            sees_frames=self._sees_frames,
        )

    @property
    def _windows_at_once(self) -> int:
        """Number of windows that run as one, for mini-batches of any size.

        Small mini-batches use the same number, so that memory is linear in the environments.
        """
        if self._sees_frames:
            return 1
        largest = -(-self._num_envs // self.least_micro_batches(self._num_envs))
        return best_num_windows(largest, self._window_length, self.device)

    def __call__(
        self,
        obs: TensorDict | FrameObs,
        state: HiddenState,
        episode_starts: torch.Tensor,
        cuts: tuple[int, ...] = (),
    ) -> tuple[Outputs, HiddenState]:
        """Run the model over a window.

        Args:
            obs: Observations of K steps of n environments, of leading shape (K, n).
            state: State before the first. Shape: (L, n, H), or a pair of them, or None.
            episode_starts: True where step t is the first of an episode. Shape: (K, n), bool.
            cuts: Steps before which the gradient of the state stops; see ``recurrent_scan``.

        Returns:
            The head's outputs and those of auxiliary heads, of leading shape (K, n), and the state
            after the last step, all in the parameters' dtype.
        """
        dtype, shape = self._like.dtype, episode_starts.shape
        with self._autocast:
            if self._parts is None:
                outputs, state = self._step_by_step(obs, state, episode_starts, cuts)
            else:
                latent = self.encode(obs)
                if self._parts.cell is not None:
                    latent, state = recurrent_scan(
                        self._parts.cell, latent, state, episode_starts, self._engine, cuts
                    )
                latent = latent.flatten(0, 1)
                if self._first_replay is not None:
                    self._first_replay.see_memory(latent)
                rows = self._head(self.model, self._parts.head(latent))
                rows += () if self._heads is None else self._heads(latent)
                outputs = tuple(output.unflatten(0, shape) for output in rows)
        outputs = tuple(output.to(dtype) for output in outputs)
        return outputs, hidden_state.apply(lambda tensor: tensor.to(dtype), state)

    def encode(self, obs: TensorDict | FrameObs) -> torch.Tensor:
        """Return the recurrent layers' inputs, (K, n, F); each frame is encoded once, in parts."""
        parts, shape = self._parts, steps_of(obs).batch_size
        assert parts is not None  # a model that runs step by step has no such inputs
        if not parts.encoders:
            return parts.encode(obs.flatten(0, 1)).unflatten(0, shape)
        obs = separate_frames(obs, parts.encoders)
        seen = dict(obs.steps.flatten(0, 1).items())
        for group, encoder in parts.encoders.items():
            rows, places = unique_frames(obs.steps[group])
            features = self._features(group, encoder, obs.frames[group], rows)
            if len(rows) < places.numel():
                features = features.index_select(0, places.flatten())
            seen[group] = features
        return parts.encode(seen).unflatten(0, shape)

    def _features(
        self, group: str, encoder: FrameEncoder, frames: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """Return features (R, F) of some rows, (R,), of the frames (F, ...) of a group."""

        def encode(some: torch.Tensor) -> torch.Tensor:
            return encoder(in_convolution_layout(frames.index_select(0, some)))

        if group not in self._bytes_per_frame:
            self._bytes_per_frame[group] = graph_bytes_per_row(encode, rows[:1].repeat(2))
        return in_parts(encode, rows, self._bytes_per_frame[group])

    def _step_by_step(
        self,
        obs: TensorDict,
        state: HiddenState,
        episode_starts: torch.Tensor,
        cuts: tuple[int, ...],
    ) -> tuple[Outputs, HiddenState]:
        """Replay any model through its public interface; its own state is restored.

        Raises:
            NotImplementedError: If the head needs a distribution and the model makes none.
        """
        model, head, steps = self.model, self._head, []
        with _state_aside(model), _updates_of(model.distribution) as seen:
            for t, (step_obs, starts) in enumerate(zip(obs.unbind(0), episode_starts, strict=True)):
                if t in cuts:
                    state = hidden_state.detach(state)
                set_state(model, state, starts)
                action = model(step_obs, stochastic_output=head is not action_head)
                if head is action_head:
                    steps.append((action,))
                elif head is gaussian_head:
                    steps.append((model.output_mean, model.output_std))
                elif seen:
                    steps.append((seen[-1],))
                else:
                    raise NotImplementedError(
                        f"{type(model).__name__} made no action distribution in its forward pass,"
                        " expected it to call `distribution.update`, as rsl_rl's models do."
                    )
                state = model.get_hidden_state()
        return tuple(torch.stack(parts) for parts in zip(*steps, strict=True)), state


def _warn_of_channels_last(model: Any) -> None:
    """Warn if images seem to be channels-last (height, width, channels); a CNN needs them first."""
    of_images = (getattr(model, f"obs_{what}_2d", ()) for what in ("groups", "channels", "dims"))
    for group, channels, (height, width) in zip(*of_images, strict=True):
        if width <= 4 < min(channels, height):
            warnings.warn(
                f"The images '{group}' are of {channels} channels, height {height} and width"
                f" {width}, expected channels first: if {width} is their number, give"
                " images.permute(0, 3, 1, 2).",
                stacklevel=5,
            )


def observations_of(model: MLPModel, obs: TensorDict) -> TensorDict | FrameObs:
    """Return those of a rollout's observations, (T, N), that a replay of ``model`` uses."""
    seen, parts = obs.select(*observed_groups(model, obs)), parts_of(model)
    return seen if parts is None or not parts.encoders else separate_frames(seen, parts.encoders)


def observed_groups(model: MLPModel, obs: TensorDict) -> list[str]:
    """Name the observation groups that a replay of ``model`` reads.

    Args:
        model: A model that follows rsl_rl's interface.
        obs: Observations with all groups.

    Returns:
        The groups of rsl_rl's own models, including a CNN's images, and of a ``RecurrentModel``.
        A model with its own forward pass or latent may read any group, so all are returned unless
        its ``observed_groups`` names them.
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


def set_state(model: MLPModel, state: HiddenState, episode_starts: torch.Tensor) -> None:
    """Set a model's state, and reset it in its own way where an episode starts, (n,).

    Args:
        model: A model that follows rsl_rl's interface.
        state: State of n environments. It is copied, as rsl_rl's models clear theirs in place.
        episode_starts: Shape (n,), bool.
    """
    model.reset(hidden_state=hidden_state.apply(torch.clone, state))
    if state is not None:
        model.reset(episode_starts.long())  # integers, as environments give them


@contextlib.contextmanager
def _state_aside(model: MLPModel) -> Iterator[None]:
    """Restore the state of a model at the end, even after an error."""
    state = model.get_hidden_state()
    try:
        yield
    finally:
        model.reset(hidden_state=state)


@contextlib.contextmanager
def _updates_of(distribution: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the values that a model updates its distribution with; it does not keep them.

    Meanwhile it draws no sample: nobody uses one, and to draw from NaN raises, so that an update
    with NaN would end the training rather than be skipped.
    """
    seen: list[torch.Tensor] = []
    if distribution is None:
        yield seen
        return
    update = distribution.update

    def record(mlp_output: torch.Tensor) -> None:
        seen.append(mlp_output)
        update(mlp_output)

    def sample() -> torch.Tensor:
        return distribution.deterministic_output(seen[-1])

    vars(distribution).update(update=record, sample=sample)  # hides the class's methods
    try:
        yield seen
    finally:
        del vars(distribution)["update"], vars(distribution)["sample"]
