"""Several teachers side by side: their models, files and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.core import hidden_state as hidden_states
from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.models.teacher_configs import build, check_names, groups_of
from rsl_tbptt.models.teacher_files import check_teachers, read_teacher


class TeacherGroup(nn.Module):
    """Teachers of any architectures and observation groups, which are never trained.

    Each is read from its file by ``load_checkpoints``, unless ``load_state_dict`` brings all of
    them, as with the checkpoint of a student that is resumed or plays.
    """

    def __init__(
        self,
        obs: TensorDict,
        default_groups: Sequence[str],
        output_dim: int,
        teachers: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Build the teachers; their files are not needed yet.

        Args:
            obs: Observations of all environments, batch size (N,).
            default_groups: What those observe that name no groups of their own.
            output_dim: Number of actions A.
            teachers: See :class:`~rsl_tbptt.models.selected_teachers.SelectedTeachers`.

        Raises:
            ValueError: If a config cannot be built or names an unknown group.
        """
        super().__init__()
        check_names(teachers)
        self.names = tuple(teachers)
        """The teachers in the order of their numbers."""
        self._groups = {
            name: list(groups_of(name, cfg, obs, default_groups)) for name, cfg in teachers.items()
        }
        self.obs_groups = list(
            dict.fromkeys(group for own in self._groups.values() for group in own)
        )
        """What any of them observes."""
        built = {
            name: build(name, cfg, obs, self._groups[name], output_dim)
            for name, cfg in teachers.items()
        }
        self.teachers = nn.ModuleDict(built).requires_grad_(False).eval()
        self._paths = {name: cfg.get("checkpoint") for name, cfg in teachers.items()}
        self._shapes = obs[:0].clone()
        self.loaded = False
        """Whether the teachers have their parameters."""
        self._state_forms: list[hidden_states.Form] = []

    @property
    def is_recurrent(self) -> bool:
        """Whether any teacher has memory."""
        return bool(self._recurrent())

    def load_checkpoints(self) -> None:
        """Read the teachers from their files.

        Raises:
            ValueError: If one is not named, missing, damaged or does not fit. Nothing is changed
                then.
        """
        with torch.inference_mode(False):  # a rollout has no gradients
            states = {
                name: read_teacher(name, teacher, self._paths[name], self._shapes)
                for name, teacher in self.teachers.items()
            }
            for name, state_dict in states.items():
                self.teachers[name].load_state_dict(state_dict)
        self.loaded = True

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take the parameters of all teachers, as torch's modules do; their files are not needed.

        Args:
            state_dict: Of a model with the same teachers, of any shapes.
            strict: Whether the names must match exactly.
            assign: Whether tensors are taken instead of copied.

        Returns:
            The names that are missing and those that were not expected.
        """
        result = super().load_state_dict(state_dict, strict, assign)
        self.loaded = True
        return result

    def check_state_dict(
        self, state_dict: Mapping[str, torch.Tensor], checkpoint: Mapping[str, Any]
    ) -> None:
        """Check that ``load_state_dict`` can take the teachers of a checkpoint.

        Args:
            state_dict: Parameters and buffers, of any shapes.
            checkpoint: What it is a part of.

        Raises:
            ValueError: If it holds other teachers, or one is known to have been configured
                otherwise.
        """
        check_teachers(self.teachers, state_dict, self._shapes, checkpoint)

    def reset(self, dones: torch.Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Clear the teachers' states where an episode ended, (N,), or set all of them.

        Args:
            dones: Which episodes ended. Shape: (N,). None sets the states.
            hidden_state: What :meth:`get_hidden_state` returned; None clears them.
        """
        if dones is not None or hidden_state is None:
            for teacher in self._recurrent():
                teacher.reset(dones)
            return
        states = hidden_states.unpack(hidden_state, self._state_forms)
        for teacher, state in zip(self._recurrent(), states, strict=True):
            teacher.reset(hidden_state=state)

    def get_hidden_state(self) -> HiddenState:
        """Return the states of all teachers side by side, (1, N, F); None before the first step."""
        states = [teacher.get_hidden_state() for teacher in self._recurrent()]
        self._state_forms = [hidden_states.form_of(state) for state in states]
        return hidden_states.pack(states)

    def detach_hidden_state(self, dones: torch.Tensor | None = None) -> None:
        """Do nothing, as no gradient reaches a teacher. ``dones``: (N,)."""

    def update_normalization(self, obs: TensorDict) -> None:
        """Do nothing: teachers keep the statistics of their training."""

    def _models(self) -> list[Any]:
        return list(self.teachers.values())

    def _recurrent(self) -> list[Any]:
        return [teacher for teacher in self._models() if teacher.is_recurrent]
