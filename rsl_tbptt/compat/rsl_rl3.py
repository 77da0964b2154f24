"""rsl_rl 3 as rsl_rl 5: the networks of its policy as models, and algorithms of such models.

rsl_rl 3 has one ``policy`` object with two networks: actor and critic, or student and teacher. A
model here is a view of one of them: it shares the policy's layers, parameters, hidden state and
action distribution, and copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from rsl_rl import algorithms, modules, utils
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_optimizer
from tensordict import TensorDict
from torch import nn
from torch.distributions import Normal

from rsl_tbptt.compat.checkpoints import Role, network_state
from rsl_tbptt.core.hidden_state import HiddenState

_OBS_SETS = {"actor": "policy", "student": "policy", "critic": "critic", "teacher": "teacher"}
_FORWARD = ("act", "act_inference", "evaluate")
_KNOWN = ("ActorCritic", "ActorCriticRecurrent", "StudentTeacher", "StudentTeacherRecurrent")


class GaussianDistribution(nn.Module):
    """A policy's action distribution; its deviation is a parameter, or an output of the network.

    ``update`` sets the policy's own ``distribution``, which its runner reads.
    """

    def __init__(self, policy: Any) -> None:
        """Take the policy."""
        super().__init__()
        self._policy = (policy,)  # a tuple, so that its networks are not submodules
        self._in_log = policy.noise_std_type == "log"
        self._name = None
        if not getattr(policy, "state_dependent_std", False):
            self._name = "log_std_param" if self._in_log else "std_param"
            parameter = policy.log_std if self._in_log else policy.std
            self.register_parameter(self._name, parameter)

    def update(self, mlp_output: torch.Tensor) -> None:
        """Set the distribution from outputs, (..., A), or (..., 2, A) including the deviation."""
        if self._name is None:
            mean, std = mlp_output.unbind(-2)
        else:
            mean, std = mlp_output, getattr(self, self._name).expand_as(mlp_output)
        self._policy[0].distribution = Normal(mean, std.exp() if self._in_log else std)

    def deterministic_output(self, mlp_output: torch.Tensor) -> torch.Tensor:
        """Return the mean action, (..., A)."""
        return mlp_output.select(-2, 0) if self._name is None else mlp_output


class MLPModel(nn.Module):
    """A network without memory, with the interface of rsl_rl 5's model of that name."""

    is_recurrent = False

    def __init__(self, policy: Any, role: Role) -> None:
        """Take one network of a policy.

        Args:
            policy: One of rsl_rl's policies.
            role: The network's role in it.
        """
        super().__init__()
        self._policy = (policy,)  # a tuple, so that its other networks are not submodules
        self.obs_groups: list[str] = policy.obs_groups[_OBS_SETS[role]]
        self.obs_normalization = getattr(policy, f"{role}_obs_normalization")
        self.obs_normalizer = getattr(policy, f"{role}_obs_normalizer")
        self.mlp = getattr(policy, role)
        acts = role in ("actor", "student")
        self.distribution = GaussianDistribution(policy) if acts else None

    @property
    def policy(self) -> nn.Module:
        """The policy that the network belongs to."""
        return self._policy[0]

    def forward(self, obs: TensorDict, stochastic_output: bool = False) -> torch.Tensor:
        """Return actions (N, A), sampled or their mean, or values (N, 1).

        With memory, the state advances by one step.
        """
        mlp_output = self.mlp(self.get_latent(obs))
        if self.distribution is None:
            return mlp_output
        if not stochastic_output:
            return self.distribution.deterministic_output(mlp_output)
        self.distribution.update(mlp_output)
        return self._normal.sample()

    def get_latent(self, obs: TensorDict) -> torch.Tensor:
        """Return the normalised observations, (N, D)."""
        return self.obs_normalizer(self._joined(obs))

    def update_normalization(self, obs: TensorDict) -> None:
        """Update the normaliser with observations, batch size (N,)."""
        if self.obs_normalization:
            self.obs_normalizer.update(self._joined(obs))

    def _joined(self, obs: TensorDict) -> torch.Tensor:
        return torch.cat([obs[group] for group in self.obs_groups], dim=-1)

    def reset(self, dones: torch.Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Do nothing, since there is no state. Shape of ``dones``: (N,)."""

    def get_hidden_state(self) -> HiddenState:
        """Return None, since there is no state."""
        return None

    @property
    def output_mean(self) -> torch.Tensor:
        """Mean action, (..., A)."""
        return self._normal.mean

    @property
    def output_std(self) -> torch.Tensor:
        """Standard deviation of the action, (..., A)."""
        return self._normal.stddev

    @property
    def output_entropy(self) -> torch.Tensor:
        """Entropy of the action, (...,)."""
        return self._normal.entropy().sum(-1)

    @property
    def output_distribution_params(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the action, (..., A) each."""
        return self._normal.mean, self._normal.stddev

    def get_output_log_prob(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of actions (..., A), summed over them."""
        return self._normal.log_prob(outputs).sum(-1)

    def get_kl_divergence(
        self, old: tuple[torch.Tensor, ...], new: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Return KL(old || new), summed over actions, with the 1e-5 of rsl_rl 3's formula.

        That term makes the divergence of equal distributions positive, so that the adaptive
        learning rate rises there.

        Args:
            old: Mean and standard deviation, shape (..., A) each.
            new: Mean and standard deviation of the other distribution.

        Returns:
            The divergence. Shape: (...,).
        """
        (old_mean, old_std), (mean, std) = old, new
        squares = old_std.square() + (old_mean - mean).square()
        per_action = torch.log(std / old_std + 1e-5) + squares / (2.0 * std.square()) - 0.5
        return per_action.sum(-1)

    @property
    def _normal(self) -> Normal:
        """The policy's distribution, which critics and teachers do not have."""
        return self._policy[0].distribution


class RNNModel(MLPModel):
    """A network with memory, with the interface of rsl_rl 5's model of that name."""

    is_recurrent = True

    def __init__(self, policy: Any, role: Role) -> None:
        """Take one network of a recurrent policy. Arguments: see :class:`MLPModel`."""
        super().__init__(policy, role)
        self.rnn = getattr(policy, _memory(role))

    def get_latent(self, obs: TensorDict) -> torch.Tensor:
        """Return the recurrent layers' outputs, (N, H), and advance their state."""
        return self.rnn(super().get_latent(obs)).squeeze(0)

    def reset(self, dones: torch.Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Clear the state where an episode ended, (N,), or set it."""
        self.rnn.reset(dones, hidden_state)

    def get_hidden_state(self) -> HiddenState:
        """Return the state after the last step."""
        return self.rnn.hidden_state


def model_of(policy: Any, role: Role) -> Any:
    """Return one network of a policy as a model.

    Args:
        policy: One of rsl_rl's policies.
        role: The network's role in it.

    Returns:
        An :class:`MLPModel`, or an :class:`RNNModel` if the network has memory.

    Raises:
        NotImplementedError: If the policy's forward pass is not rsl_rl's own.
    """
    if not any(_runs_as(policy, getattr(modules, name)) for name in _KNOWN):
        raise NotImplementedError(
            f"The policy is a {type(policy).__name__} with its own forward pass, expected one of"
            f" {', '.join(_KNOWN)}: others cannot be replayed over a window."
        )
    return (RNNModel if hasattr(policy, _memory(role)) else MLPModel)(policy, role)


def fit_teacher(policy: Any, obs: TensorDict) -> None:
    """Give a teacher without memory a first layer that fits its observations.

    rsl_rl 3.1.2 builds it for inputs of the student's hidden size if the student is recurrent, so
    that neither a forward pass nor a checkpoint fits.

    Args:
        policy: StudentTeacher or StudentTeacherRecurrent; its teacher is not loaded yet.
        obs: Observations, any batch size.
    """
    num_inputs = sum(obs[group].shape[-1] for group in policy.obs_groups["teacher"])
    first: nn.Linear = policy.teacher[0]
    if getattr(policy, "teacher_recurrent", False) or first.in_features == num_inputs:
        return
    policy.teacher[0] = nn.Linear(num_inputs, first.out_features).to(first.weight)


def _runs_as(policy: Any, known: type[nn.Module]) -> bool:
    """Return whether ``policy`` has the forward pass of a class."""
    forward = [getattr(type(policy), name, None) for name in _FORWARD]
    return forward == [getattr(known, name) for name in _FORWARD]


def _memory(role: Role) -> str:
    return f"memory_{role[0]}"


def resolve_callable(name: str | Callable[..., Any]) -> Callable[..., Any]:
    """Import a function by its qualified name, ``"module:function"`` or ``"module.function"``."""
    if callable(name):
        return name
    legacy: Any = utils  # rsl_rl 5 has another name for it
    return legacy.string_to_callable(name if ":" in name else ":".join(name.rsplit(".", 1)))


def teacher_state_dict(checkpoint: Mapping[str, Any], source: str) -> dict[str, torch.Tensor]:
    """Return the teacher's parameters: the teacher of a distillation, or the actor of a PPO run.

    Args:
        checkpoint: A checkpoint of rsl_rl 3's runner.
        source: Name of the checkpoint in the message.

    Returns:
        Parameters and buffers under the names of the teacher's model, in the policy's shapes,
        without the distribution's.

    Raises:
        ValueError: If ``checkpoint`` has neither.
    """
    policy_state = checkpoint.get("model_state_dict", {})
    for role in ("teacher", "actor"):
        state = network_state(policy_state, role)
        if state:
            return {key: v for key, v in state.items() if not key.startswith("distribution.")}
    raise ValueError(
        f"{source} has neither 'teacher' nor 'actor' in its 'model_state_dict', it holds"
        f" {sorted(checkpoint)}: expected a checkpoint of PPO or distillation of rsl_rl 3."
    )


def config_advice(key: str, role: str, in_checkpoint: bool) -> str:
    """Return the setting of an rsl_rl 3 config that has to change for a model's key to agree."""
    if key.startswith("distribution"):
        return "set 'policy.noise_std_type' and 'policy.state_dependent_std' as in its training."
    if key.startswith("obs_normalizer"):
        return f"set 'policy.{role}_obs_normalization' to {in_checkpoint} in the config."
    if key.startswith("rnn"):
        if role == "teacher":
            return f"set 'policy.teacher_recurrent' to {in_checkpoint} in the config."
        return "give the policy the class and 'rnn_type' and 'rnn_num_layers' of its training."
    return f"set 'policy.{role}_hidden_dims' in the config as in its training."


class _OfPolicy:
    """Methods that rsl_rl 5's runners call; rsl_rl 3's runner saves and loads itself."""

    policy: Any

    def train_mode(self) -> None:
        """Set all networks to training; a policy keeps its teacher in evaluation mode."""
        self.policy.train()

    def save(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load nothing."""
        return False


class PPO(_OfPolicy, algorithms.PPO):
    """rsl_rl 3's PPO for two models of one policy."""

    def __init__(
        self,
        actor: Any,
        critic: Any,
        storage: RolloutStorage,
        *,
        optimizer: str,
        learning_rate: float,
        **arguments: Any,
    ) -> None:
        """Take actor and critic of one ActorCritic, a storage, and rsl_rl 3's other arguments."""
        self.policy = actor.policy
        super().__init__(self.policy, learning_rate=learning_rate, **arguments)
        optimizer_class: Any = resolve_optimizer(optimizer)  # rsl_rl 3 itself supports only Adam
        self.optimizer = optimizer_class(self.policy.parameters(), lr=learning_rate)
        self.actor, self.critic, self.storage = actor, critic, storage


class Distillation(_OfPolicy, algorithms.Distillation):
    """rsl_rl 3's Distillation for two models of one policy."""

    def __init__(
        self, student: Any, teacher: Any, storage: RolloutStorage, **arguments: Any
    ) -> None:
        """Take both of one StudentTeacher, a storage, and rsl_rl 3's other arguments."""
        self.policy = student.policy
        super().__init__(self.policy, **arguments)
        self.student, self.teacher, self.storage = student, teacher, storage


class ModelStorage(RolloutStorage):
    """rsl_rl 3's storage with the names of rsl_rl 5."""

    # Attributes that rsl_rl 5 has not; type checking uses its types.
    add_transitions: Callable[[RolloutStorage.Transition], None]
    mu: torch.Tensor
    sigma: torch.Tensor

    def add_transition(self, transition: RolloutStorage.Transition) -> None:
        """Store one step of all environments."""
        self.add_transitions(transition)

    @property
    def distribution_params(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the actions, (T, N, A) each."""
        return self.mu, self.sigma


def keep_with_optimizer(
    optimizer: torch.optim.Optimizer,
    save: Callable[[], dict[str, Any]],
    load: Callable[[dict[str, Any]], object],
    replaces: Callable[[], bool] = lambda: False,
) -> None:
    """Keep an algorithm's own state in the optimiser's state dict.

    rsl_rl 3's runner saves only the policy and optimiser of an algorithm. torch ignores extra keys
    next to the optimiser's own, so plain rsl_rl loads the checkpoint, too.

    Args:
        optimizer: The optimiser.
        save: Returns the algorithm's state, under keys that the optimiser does not have.
        load: Restores it, after the optimiser's state; it is empty if rsl_rl wrote the checkpoint.
        replaces: Whether the state dict to load belongs to other networks. The optimiser is not
            changed then.
    """
    loaded: dict[str, Any] = {}

    def write(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {**state_dict, **save()}

    def before(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        state_dict = optimizer.state_dict() if replaces() else state_dict
        loaded.clear()
        loaded.update({k: v for k, v in state_dict.items() if k not in ("state", "param_groups")})
        return state_dict

    def after(_: torch.optim.Optimizer) -> None:
        load(dict(loaded))

    optimizer.register_state_dict_post_hook(write)
    # First of all hooks, so that their changes apply to the replacement, too.
    optimizer.register_load_state_dict_pre_hook(before, prepend=True)
    optimizer.register_load_state_dict_post_hook(after)
