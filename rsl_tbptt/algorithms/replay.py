"""Replay of models for updates: whole windows, recurrent layers as a scan, each frame once.

Everything but the recurrent layers runs once per window, on K * n rows (K steps, n environments).
A model whose parts are not known is run step by step. An :class:`Objective` is a model with the
loss that an optimiser step adds up over its replay.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms import fused
from rsl_tbptt.algorithms.frames import (
    FrameObs,
    in_convolution_layout,
    separate_frames,
    steps_of,
    unique_frames,
)
from rsl_tbptt.algorithms.health import FirstReplay
from rsl_tbptt.compat.versions import GAUSSIANS, OWN_MODELS, MLPModel
from rsl_tbptt.core import hidden_state, losses
from rsl_tbptt.core.accumulate import (
    Outputs,
    SampleLosses,
    accumulate_group,
    best_num_micro_batches,
    best_num_windows,
    bytes_per_sample,
)
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.core.losses import PolicyTerms
from rsl_tbptt.core.recompute import graph_bytes_per_row, in_parts
from rsl_tbptt.core.rollout import BUFFER, NEWEST, WEIGHT, Batch, Rollout, Samples
from rsl_tbptt.core.scan import check_engine, fastest_engine, recurrent_scan, unchanged_weights
from rsl_tbptt.core.windows import Group
from rsl_tbptt.extensions import OptionGroup, Term
from rsl_tbptt.models.protocol import FrameEncoder, parts_of


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
    """A model that is replayed over windows."""

    def __init__(
        self,
        model: MLPModel,
        options: ReplayOptions | None = None,
        num_envs: int = 1,
        window_length: int = 1,
        first_replay: FirstReplay | None = None,
        *,
        needs_distribution: bool = False,
    ) -> None:
        """Choose how the model is replayed.

        Args:
            model: A model that follows rsl_rl's interface.
            options: The algorithm's: scan engine, precision and memory. None takes the defaults.
            num_envs: Environments of the largest mini-batch.
            window_length: Steps of the longest window.
            first_replay: Records the outputs of the recurrent layers.
            needs_distribution: Whether outputs have to be the inputs of the model's distribution;
                those of a model that runs step by step are its actions otherwise.
        """
        options = options or ReplayOptions()
        self.model = model
        self.parameters: list[nn.Parameter] = list(model.parameters())
        """Parameters of the model alone."""
        self._like = next(iter(self.parameters), torch.empty(0))  # a teacher may have none
        self._parts = parts_of(model)
        self.gives_actions = model.distribution is None or (
            self._parts is None and not needs_distribution
        )
        """Whether outputs are actions, and not inputs of the distribution."""
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

    def unrecordable_reason(self) -> str | None:
        """Return why a step of this model cannot be recorded as a CUDA graph, or None."""
        name = type(self.model).__name__
        if self._parts is None:
            return f"a {name} runs step by step"
        if self._sees_frames:
            return f"a {name} encodes each frame once, and the host waits for their number"
        if self._engine == "reference":
            return "scan_engine is 'reference'"
        return None

    @property
    def runs_triton(self) -> bool:
        """Whether the recurrent layers run as Triton kernels; the losses then do so, too."""
        cell, engine = self._parts and self._parts.cell, self._engine
        if cell is not None and engine == "auto":
            engine = fastest_engine(cell.mode, self.device, self._like.dtype)
        return cell is not None and engine.startswith("triton")

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

    @cached_property
    def windows_at_once(self) -> int:
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
            The model's outputs and, unless it runs step by step, the latent that its head reads,
            of leading shape (K, n), and the state after the last step, in the parameters' dtype.
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
                rows = self._parts.head(latent), latent
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
        read = dict(obs.steps.flatten(0, 1).items())
        for group, encoder in parts.encoders.items():
            rows, places = unique_frames(obs.steps[group])
            features = self._features(group, encoder, obs.frames[group], rows)
            if len(rows) < places.numel():
                features = features.index_select(0, places.flatten())
            read[group] = features
        return parts.encode(read).unflatten(0, shape)

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
            NotImplementedError: If a distribution is needed and the model makes none.
        """
        model, steps = self.model, []
        with _state_aside(model), _updates_of(model.distribution) as updates:
            for t, (step_obs, starts) in enumerate(zip(obs.unbind(0), episode_starts, strict=True)):
                if t in cuts:
                    state = hidden_state.detach(state)
                set_state(model, state, starts)
                action = model(step_obs, stochastic_output=not self.gives_actions)
                if self.gives_actions:
                    steps.append(action)
                elif updates:
                    steps.append(updates[-1])
                else:
                    raise NotImplementedError(
                        f"{type(model).__name__} made no action distribution in its forward pass,"
                        " expected it to call `distribution.update`, as rsl_rl's models do."
                    )
                state = model.get_hidden_state()
        return (torch.stack(steps),), state


class Policy:
    """What a model computes for K steps of n environments, each value once and when it is asked.

    Of values of the distribution, use those of one object before the next one is made.
    """

    def __init__(self, replay: Replay, outputs: Outputs, samples: Samples) -> None:
        """Take the outputs of a replay and their labels."""
        self.model: Any = replay.model
        self.replay, self.output, self._samples = replay, outputs[0], samples
        self._gives_actions, self._latent = replay.gives_actions, outputs[1:]

    @cached_property
    def mean(self) -> torch.Tensor:
        """The action without noise. Shape: (K, n, A)."""
        if self._gives_actions:
            return self.output
        return self.model.distribution.deterministic_output(self.output)

    @property
    def value(self) -> torch.Tensor:
        """A critic's value. Shape: (K, n, 1)."""
        return self.mean

    @property
    def latent(self) -> torch.Tensor:
        """What the model's head reads. Shape: (K, n, H).

        Raises:
            NotImplementedError: If the model runs step by step.
        """
        if not self._latent:
            raise NotImplementedError(
                f"The latent of a {type(self.model).__name__} is unknown, expected a model of"
                " rsl_rl or a WindowedModel: it has its own forward pass and runs step by step."
            )
        return self._latent[0]

    @cached_property
    def _updated(self) -> Any:
        """The model, whose distribution is that of these outputs.

        Raises:
            NotImplementedError: If only its actions are known.
        """
        if self._gives_actions:
            raise NotImplementedError(
                f"The distribution of a {type(self.model).__name__} is asked for and unknown,"
                " expected a model of rsl_rl with a distribution, or loss_type 'nll' or 'kl'."
            )
        self.model.distribution.update(self.output)
        return self.model

    @property
    def std(self) -> torch.Tensor:
        """Standard deviation of the actions. Shape: (K, n, A)."""
        return self._updated.output_std

    @cached_property
    def log_prob(self) -> torch.Tensor:
        """Log-probability of ``samples["actions"]``. Shape: (K, n)."""
        return self.log_prob_of(self._samples["actions"])

    def log_prob_of(self, actions: torch.Tensor) -> torch.Tensor:
        """Return the log-probability, (K, n), of actions, (K, n, A)."""
        return self._updated.get_output_log_prob(actions)

    @cached_property
    def entropy(self) -> torch.Tensor:
        """Entropy of the distribution. Shape: (K, n)."""
        return self._updated.output_entropy

    def surrogate(self, advantages: torch.Tensor, clip: float) -> PolicyTerms:
        """Return PPO's terms, of samples with the labels "actions", "log_prob" and "old".

        Args:
            advantages: Advantages. Shape: (K, n).
            clip: Clip range of the probability ratio around 1.
        """
        samples, model = self._samples, self._updated
        old, old_log_prob = samples["old"], samples["log_prob"]
        if self.replay.runs_triton and type(model.distribution) in GAUSSIANS:
            labels = samples["actions"], old, old_log_prob, advantages
            return fused.gaussian_terms(model.output_mean, model.output_std, *labels, clip)
        log_probs = self.log_prob, old_log_prob
        loss = losses.clipped_surrogate(*log_probs, advantages, clip)
        with torch.no_grad():
            kl = self.kl_from(old)
        is_clipped = losses.is_clipped(*log_probs, clip)
        return PolicyTerms(loss, self.entropy, kl, is_clipped, self.log_prob)

    def kl_from(self, params: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the KL divergence, (K, n), from a distribution with these parameters."""
        model = self._updated
        return model.get_kl_divergence(params, model.output_distribution_params)


class Objective:
    """A model that is replayed over a rollout, and the loss that an optimiser step adds up."""

    rollout: Rollout
    """The rollout, with the observations that the model reads."""

    states: HiddenState
    """States before the first steps. Shape: (L, C, H), or a pair of them."""

    def __init__(
        self, replay: Any, losses: Callable[[Policy, Samples], Iterable[Term]], coef: float = 1.0
    ) -> None:
        """Take the parts.

        Args:
            replay: A :class:`Replay`.
            losses: Yields terms of the loss.
            coef: Weight of the loss compared with other objectives.
        """
        self.replay, self.losses, self.coef = replay, losses, coef
        self.names: set[str] = set()
        """Names of the terms that are losses, and not only reported."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters."""
        return self.replay.parameters

    def accumulate(
        self,
        group: Group,
        first_rows: torch.Tensor,
        state: HiddenState,
        divisor: float | torch.Tensor,
        num_micro_batches: int,
    ) -> tuple[HiddenState, dict[str, torch.Tensor]]:
        """Add the gradient of a group of windows to ``.grad``; see ``core.accumulate``.

        Args:
            group: The windows, in time order.
            first_rows: First steps of the segments; see :class:`Batch`. Shape: (n,).
            state: State before them. Shape: (L, n, H), or a pair of them.
            divisor: M, the divisor of the sum of per-sample losses. Shape: ().
            num_micro_batches: Minimum number of micro-batches, which run one after the other.

        Returns:
            The detached state after the group, and the sums of the terms by name.
        """
        least = self.replay.least_micro_batches(len(first_rows))
        with unchanged_weights():
            return accumulate_group(
                group,
                Batch(self.rollout, first_rows),
                state,
                self.replay,
                self.loss,
                divisor,
                coef=self.coef,
                num_micro_batches=max(num_micro_batches, least),
                windows_at_once=self.replay.windows_at_once,
            )

    def loss(self, outputs: Outputs, samples: Samples) -> SampleLosses:
        """Return the sum of the terms, and each of them to report.

        With a replay buffer a term is reported on the newest rollout, and BUFFER on past ones.
        """
        policy, trained, reported = Policy(self.replay, outputs, samples), None, {}
        for name, coef, values in self.losses(policy, samples):
            reported[name] = values
            if NEWEST in samples:
                counted = ~samples[NEWEST] if name == BUFFER else samples[NEWEST]
                reported[name] = torch.where(counted, values, 0.0)
            is_trained = isinstance(coef, torch.Tensor) or coef != 0
            if is_trained or name == BUFFER:
                self.names.add(name)
            if is_trained:
                term = values if isinstance(coef, float) and coef == 1.0 else coef * values
                trained = term if trained is None else trained + term
        if trained is None:
            trained = outputs[0].new_zeros(samples.rollout.episode_starts.shape)
        return SampleLosses(samples[WEIGHT] * trained if WEIGHT in samples else trained, reported)

    def check_gradient(self, losses: str) -> None:
        """Check that losses have reached the model, right after the first :meth:`accumulate`.

        A frozen model has nothing to reach, and a loss times 0 reaches it with zeros.

        Args:
            losses: The losses, for the message.

        Raises:
            ValueError: If no parameter has a gradient.
        """
        learned = [parameter for parameter in self.parameters if parameter.requires_grad]
        if learned and all(parameter.grad is None for parameter in learned):
            model = self.replay.model
            raise ValueError(
                f"The gradient of {losses} reaches no parameter of the {type(model).__name__}"
                f" (distribution: {type(model.distribution).__name__}), expected at least one:"
                " otherwise the model cannot learn. Look for argmax, rounding, detach() or"
                " no_grad() in its forward pass."
            )


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
    read, parts = obs.select(*observed_groups(model, obs)), parts_of(model)
    return read if parts is None or not parts.encoders else separate_frames(read, parts.encoders)


def observed_groups(model: MLPModel, obs: TensorDict) -> list[str]:
    """Name the observation groups that a replay of ``model`` reads.

    Args:
        model: A model that follows rsl_rl's interface.
        obs: Observations with all groups.

    Returns:
        The groups of rsl_rl's own models, including a CNN's images, and of a ``RecurrentModel``.
        A model with its own forward pass or latent may read any group, so all are returned.
    """
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
    inputs: list[torch.Tensor] = []
    if distribution is None:
        yield inputs
        return
    update = distribution.update

    def record(mlp_output: torch.Tensor) -> None:
        inputs.append(mlp_output)
        update(mlp_output)

    def sample() -> torch.Tensor:
        return distribution.deterministic_output(inputs[-1])

    vars(distribution).update(update=record, sample=sample)  # hides the class's methods
    try:
        yield inputs
    finally:
        del vars(distribution)["update"], vars(distribution)["sample"]
