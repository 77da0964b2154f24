"""PPO between its updates: how it is built, acts, stores steps, and is saved and loaded."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from rsl_tbptt.algorithms.actor_critic import ActorCritic
from rsl_tbptt.algorithms.algorithm import Algorithm, checked_config
from rsl_tbptt.algorithms.batches import Batches
from rsl_tbptt.algorithms.extensions.fine_tuning import FineTuning
from rsl_tbptt.algorithms.extensions.heads import AuxiliaryHeads
from rsl_tbptt.algorithms.extensions.imitation import Imitation, build_teacher
from rsl_tbptt.algorithms.extensions.rnd import RndTraining
from rsl_tbptt.algorithms.find_nan import Inputs
from rsl_tbptt.algorithms.optimizers import check_optimizer, set_rate, step_batches
from rsl_tbptt.algorithms.options import PpoOptions
from rsl_tbptt.algorithms.policy_losses import store_advantages
from rsl_tbptt.algorithms.transaction import Transaction
from rsl_tbptt.algorithms.truncation_bootstrap import TruncationBootstrap, value_without_advancing
from rsl_tbptt.checkpoints.describing import check_fits
from rsl_tbptt.checkpoints.reading import check_matches
from rsl_tbptt.compat.checkpoints import as_models
from rsl_tbptt.compat.versions import PPO, MLPModel
from rsl_tbptt.core import hidden_state
from rsl_tbptt.core.hidden_state import HiddenState


class PpoRollouts(Algorithm, PPO):
    """PPO around its updates, which subclasses add."""

    options: PpoOptions
    _models: dict[str, MLPModel]
    _raw_actor: MLPModel
    _raw_critic: MLPModel

    def _prepare_updates(self) -> None:
        """Set up extensions, mini-batches, the replay of the models and the transaction."""
        options, storage, ranks = self.options, self.storage, self._ranks
        actor, critic = models = self._raw_actor, self._raw_critic
        device, sizes = storage.dones.device, (storage.num_transitions_per_env, storage.num_envs)
        recurrent = actor.is_recurrent or critic.is_recurrent
        self.batches = Batches(*sizes, options, ranks, device, has_memory=recurrent)
        self.imitation = Imitation(
            actor, options, storage, ranks, lambda: self._fine_tuning.holds_actor
        )
        """The teacher that the actor imitates; without one it has no effect."""
        is_first_rank = self.gpu_global_rank == 0
        self._fine_tuning = FineTuning(actor, options, self.imitation, is_first_rank=is_first_rank)
        heads = AuxiliaryHeads(self, actor)
        rnd = [RndTraining(self, self.batches.groups)] if self.rnd else []
        self.extensions = [self.imitation, self._fine_tuning, heads, *rnd, self.curricula]
        self._bootstrap = TruncationBootstrap(critic, storage)
        self.gradient = ActorCritic(self, *models, heads)
        """Actor and critic as they are replayed."""
        self.states: list[tuple[HiddenState, HiddenState]] = []
        """States of actor and critic before the first steps of segments; (L, N, H) each."""
        self._step_batches = step_batches(sizes[0], self.batches.num_samples // sizes[0], device)
        self._prepare_recording(self.gradient.actor, self.gradient.critic)
        self.transaction = Transaction(self, models, self.batches.num_envs_of_largest)

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> PPO:
        """Build models, storage and algorithm from the runner's config, as rsl_rl does.

        Args:
            obs: Observations of the environment; groups that are no tensors are left out.
            env: The environment.
            cfg: The runner's config. The teacher of ``teacher_cfg`` sees observation set "teacher".
                "check_for_nan" is set to False: the algorithm checks instead.
            device: Device of the update.

        Raises:
            ValueError: If the config or an observation group is not valid; see ``checked_config``.
        """
        obs, configs = checked_config(obs, cfg)
        algorithm = PPO.construct_algorithm(obs, env, cfg, device)
        if isinstance(algorithm, PpoRollouts):
            algorithm._join_runner(obs, env, cfg, configs)
            teacher_cfg = algorithm.options.teacher_cfg
            if teacher_cfg is not None and algorithm.options.teacher_coef > 0:
                algorithm.set_teacher(build_teacher(obs, env, cfg, teacher_cfg, device))
        return algorithm

    def set_teacher(self, teacher: MLPModel) -> None:
        """Set the teacher's model; its parameters come from a checkpoint or ``teacher_checkpoint``.

        Raises:
            NotImplementedError: If its distribution is of another kind than the actor's, which
                ``teacher_loss="kl"`` needs.
        """
        self.imitation.set_teacher(teacher)

    @torch.no_grad()  # a graph of your own loop's gradients would belong to another stream
    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample actions (N, A) for observations (N,) and record the values that the update needs.

        Raises:
            ValueError: If training starts here and the teacher is missing or options do not fit the
                number of environments; or if observations differ in form from the first ones.
        """
        self._start_training(self.batches.check_training)
        obs, step = self._begin_step(obs), self.storage.step
        if step == 0:
            self.states = []
        if step in self.batches.state_steps:
            states = self._raw_actor.get_hidden_state(), self._raw_critic.get_hidden_state()
            self.states.append((hidden_state.clone(states[0]), hidden_state.clone(states[1])))
        for extension in self.extensions:
            extension.act(obs, step)
        actions = super().act(obs)
        self.transition.hidden_states = (None, None)
        return actions.clone()  # the environment may change them

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        """Store the step and clear the states of finished episodes.

        The normaliser is updated at the end of ``update()``, so that the replay uses the same one.

        Args:
            obs: Next observations; RND computes its reward from them.
            rewards: Rewards, shape (N,).
            dones: Which episodes ended with this step, shape (N,).
            extras: May have "time_outs", shape (N,): episodes that ended by time alone, whose
                bootstrap value is added to the reward; and "final_obs", before any reset.

        Raises:
            ValueError: If :class:`StepChecks` or :class:`TruncationBootstrap` rejects the step.
        """
        rewards, dones = self.step_checks.step(obs, rewards, dones)
        assert self.transition.values is not None
        beyond = self._bootstrap(self.critic, self.transition.values, extras)
        self.transition.dones, own = dones, rewards
        for extension in self.extensions:
            own = extension.reward(obs, own)
            extension.process_env_step(self.storage.step, rewards, dones)
        self.transition.rewards = own + self.options.gamma * beyond
        self.storage.add_transition(self.transition)
        self.transition.clear()
        for model in (self.actor, self.critic):
            model.reset(dones)

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute advantages, normalised over all processes, and returns; no state advances.

        ``obs`` follows the last step and has batch size (N,); it is checked as in :meth:`act`.
        """
        obs = self.step_checks.observations(obs)
        last_values = value_without_advancing(self.critic, obs)
        store_advantages(
            self.storage, last_values, self.options, self.batches.num_samples, self._ranks
        )

    def _conclude(self) -> dict[str, float]:
        """End an iteration, as the base class does; warn of time-outs without observation."""
        self._bootstrap.warn_once()
        return super()._conclude()

    def stateful_models(self) -> dict[str, Any]:
        """Return all models with hidden states, by their roles in checkpoints."""
        return {**self._models, **self.imitation.stateful_models()}

    def _read_groups(self) -> set[str]:
        return self._read_by(self._models.values())

    def _inputs(self) -> Inputs:
        names = ("rewards", "values", "actions", "actions_log_prob", "returns")
        recorded = {name: getattr(self.storage, name) for name in names}
        for extension in self.extensions:
            recorded |= extension.inputs()
        return Inputs(self._read_groups(), recorded)

    def save(self) -> dict[str, Any]:
        """Return rsl_rl's checkpoint, with this algorithm's part under "rsl_tbptt"."""
        own = {"learning_rate": self.options.learning_rate, **self._described(self._models)}
        own["kl_coef"] = self.gradient.policy_loss.kl_coef
        return super().save() | {"rsl_tbptt": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load a PPO checkpoint as rsl_rl does, after checking that all of it fits.

        A distillation checkpoint makes its student the actor, with the action noise
        ``student_action_std``; the critic is warmed up first. It also brings a teacher, so you do
        not need ``teacher_checkpoint``. From a checkpoint of rsl_rl 1 to 3 only models are loaded.

        Args:
            loaded_dict: The checkpoint.
            load_cfg: Parts to load, or None for all. "actor" includes its warm-up, its teacher and
                schedule, and its auxiliary heads, which "auxiliary" loads alone; "optimizer"
                includes the weight of the KL penalty.
            strict: Whether parameters must match exactly.

        Returns:
            Whether the runner should take over the iteration.

        Raises:
            ValueError: If parameters or optimiser do not fit, or if the models were configured
                differently. Nothing is changed then.
        """
        given = loaded_dict
        loaded_dict, load_cfg = as_models(loaded_dict, load_cfg)
        wants: dict = dict.fromkeys(_LOADED, True) if load_cfg is None else load_cfg
        obs, own = self.storage.observations, loaded_dict.get("rsl_tbptt", {})
        if "student_state_dict" in loaded_dict and wants.get("actor"):
            heads = {"auxiliary": True}
            self._check_extensions(own, heads)
            self._fine_tuning.start(loaded_dict, obs, strict)
            self._load_extensions(own, heads)
            self.curricula.go_on_from(given, resumes=False)
            return False
        self._check_extensions(own, wants)
        roles = {**self._models, "rnd": self.rnd}.items()
        models = {role: model for role, model in roles if model and wants.get(role)}
        _check_checkpoint(models, loaded_dict, obs, strict)
        if wants.get("optimizer"):
            check_optimizer(self.optimizer, loaded_dict)
        self._load_extensions(own, wants)  # first, since a teacher may not fit
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        if wants.get("optimizer"):
            self.gradient.policy_loss.kl_coef = own.get("kl_coef", self.options.kl_penalty_coef)
            self._resume_rate(own)
        if wants.get("actor"):
            self.curricula.go_on_from(given, resumes=True)
        return load_iteration

    def _resume_rate(self, own: Mapping[str, Any]) -> None:
        """Set the config's learning rate, unless an adaptive one goes on from the checkpoint's."""
        rate, before = self.options.learning_rate, own.get("learning_rate")
        if self.options.followed_kl() is None:
            set_rate(self.optimizer, rate)
        elif before not in (None, rate):
            warnings.warn(
                f"learning_rate is {rate} and was {before} before: it has no effect on a training"
                f" that goes on with schedule='adaptive', here at {self.learning_rate:.3g}. Set"
                " schedule='fixed', or load with 'optimizer' left out of load_cfg.",
                stacklevel=4,
            )


def _check_checkpoint(
    models: Mapping[str, Any], checkpoint: Mapping[str, Any], obs: TensorDict, strict: bool
) -> None:
    """Check that a PPO checkpoint has the requested parts.

    Args:
        models: Models to load, by role: "actor", "critic" and "rnd".
        checkpoint: The checkpoint.
        obs: Observations of any batch size.
        strict: Whether parameters must match exactly.

    Raises:
        ValueError: If a part is missing or does not fit.
    """
    for role, model in models.items():
        key = f"{role}_state_dict"
        if key not in checkpoint:
            raise ValueError(
                f"The checkpoint lacks '{key}', it holds {sorted(checkpoint)}: expected one of"
                " PPO or distillation of rsl_rl 5."
            )
        if strict and role == "rnd":
            check_matches(model, checkpoint[key], role)
        elif strict:
            check_fits(model, checkpoint[key], role, obs, checkpoint)


_LOADED = ("actor", "critic", "rnd", "optimizer", "auxiliary")
"""Parts of a PPO checkpoint that are loaded by default."""
