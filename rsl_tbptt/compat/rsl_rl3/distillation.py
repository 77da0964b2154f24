"""TbpttDistillation on a StudentTeacher or StudentTeacherRecurrent."""

from __future__ import annotations

from typing import Any

from rsl_rl.algorithms import Distillation
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.algorithms.distillation import algorithm as distillation
from rsl_tbptt.checkpoints.reading import check_matches, read_checkpoint
from rsl_tbptt.checkpoints.trained_models import check_configured_alike
from rsl_tbptt.compat.rsl_rl3.checkpoints import advice, keep_with_optimizer, teacher_state
from rsl_tbptt.compat.rsl_rl3.models import model_of
from rsl_tbptt.compat.rsl_rl3.storage import ModelStorage
from rsl_tbptt.compat.versions import MLPModel


class DistillationOfModels(Distillation):
    """rsl_rl 3's Distillation, constructed as rsl_rl 5's is: from two models and a storage."""

    policy: Any
    """The StudentTeacher they are networks of, which is there before them."""

    def __init__(
        self,
        student: MLPModel,
        teacher: MLPModel,
        storage: RolloutStorage,
        **arguments: Any,
    ) -> None:
        """Take the models of ``self.policy`` and a storage, and what rsl_rl 3 takes beside them."""
        super().__init__(self.policy, **arguments)
        self.student, self.teacher, self.storage = student, teacher, storage

    @property
    def teacher_loaded(self) -> bool:
        """Whether the teacher's parameters were loaded, which the runner asks the policy."""
        return self.policy.loaded_teacher

    @teacher_loaded.setter
    def teacher_loaded(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, loaded: bool
    ) -> None:
        self.policy.loaded_teacher = loaded

    def save(self) -> dict[str, Any]:
        """Return nothing: rsl_rl 3's runner saves policy and optimiser itself."""
        return {}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Load nothing: rsl_rl 3's runner loads policy and optimiser itself."""
        return False


class TbpttDistillation(distillation.TbpttDistillation, DistillationOfModels):
    """:class:`rsl_tbptt.algorithms.TbpttDistillation` for rsl_rl 3.1.2's runner.

    A drop-in for that release's Distillation: same policies, checkpoints and runner. All options
    are there, and all but ``loss_type="kl"`` work: a StudentTeacher has no standard deviation of
    the teacher's actions.
    """

    def __init__(
        self,
        policy: nn.Module,
        *,
        device: str = "cpu",
        multi_gpu_cfg: dict | None = None,
        **options: Any,
    ) -> None:
        """Keep the arguments until ``init_storage``, which the runner calls next.

        Args:
            policy: StudentTeacher or StudentTeacherRecurrent.
            device: Device of the update.
            multi_gpu_cfg: rsl_rl's description of the processes, or None for one process.
            **options: Fields of :class:`DistillationOptions`.

        Raises:
            NotImplementedError: If ``loss_type`` is "kl".
        """
        if options.get("loss_type") == "kl":
            raise NotImplementedError(
                "loss_type is 'kl', expected another with rsl_rl 3: its policy keeps no standard"
                " deviation of the teacher. Use 'nll' or 'mse'."
            )
        self.policy = policy.to(device)
        self._arguments = {"device": device, "multi_gpu_cfg": multi_gpu_cfg, **options}

    def init_storage(
        self,
        training_type: str,
        num_envs: int,
        num_transitions_per_env: int,
        obs: TensorDict,
        actions_shape: list[int] | tuple[int, ...],
    ) -> None:
        """Make the storage and with it everything else.

        Args:
            training_type: "distillation".
            num_envs: Number of environments N.
            num_transitions_per_env: Steps of a rollout T.
            obs: Observations of all environments, batch size (N,).
            actions_shape: (A,).

        Raises:
            ValueError: If an option is unknown, invalid or contradicts another.
            NotImplementedError: If the policy is not one of rsl_rl's.
        """
        device = self._arguments["device"]
        sizes = (num_envs, num_transitions_per_env)
        storage = ModelStorage(training_type, *sizes, obs, actions_shape, device)
        student = model_of(self.policy, "student")
        fit_teacher(self.policy, obs)
        super().__init__(student, model_of(self.policy, "teacher"), storage, **self._arguments)
        keep_with_optimizer(self.optimizer, self.save, self._load_own)

    def _start_training(self) -> None:
        if self.policy.loaded_teacher is True:  # by the policy, which loads checkpoints itself
            self._awaited_teacher = None
        super()._start_training()

    def _load_own(self, loaded: dict[str, Any]) -> None:
        self.load(loaded, {"student": True}, strict=False)

    def _load_teacher(self, path: str) -> None:
        source = f"The teacher_checkpoint '{path}'"
        checkpoint = read_checkpoint(path, self.device)
        state = teacher_state(checkpoint, source)
        check_matches(self._raw_teacher, state, "teacher", advice)
        obs = self.storage.observations
        check_configured_alike(self._raw_teacher, obs, "teacher", checkpoint, path)
        self._raw_teacher.load_state_dict(state)
        self.teacher_loaded = True


def fit_teacher(policy: nn.Module, obs: TensorDict) -> None:
    """Give a teacher without memory a first layer for what it observes.

    rsl_rl 3.1.2 builds the one beside a recurrent student for inputs of the student's hidden size,
    so that neither a forward pass nor a checkpoint fits.

    Args:
        policy: StudentTeacher or StudentTeacherRecurrent; its teacher is not loaded yet.
        obs: Observations, any batch size.
    """
    num_inputs = sum(obs[group].shape[-1] for group in policy.obs_groups["teacher"])  # type: ignore[index]
    first: nn.Linear = policy.teacher[0]  # type: ignore[index]
    if getattr(policy, "teacher_recurrent", False) or first.in_features == num_inputs:
        return
    policy.teacher[0] = nn.Linear(num_inputs, first.out_features).to(first.weight)  # type: ignore[index]
