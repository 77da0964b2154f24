"""A teacher from a TorchScript or ONNX file, whose network need not be rebuilt."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from rsl_tbptt.core.hidden_state import HiddenState
from rsl_tbptt.installation import install
from rsl_tbptt.models.controller import OF_NETWORKS, Untrained, has_parameters
from rsl_tbptt.models.onnx_network import OnnxNetwork
from rsl_tbptt.user_functions import made_up

Network = Callable[[torch.Tensor], Any]
"""Maps joined observations, (rows, D), to actions, (rows, A), or to several tensors."""


class ExportedTeacher(Untrained):
    """A feed-forward policy as its trainer exported it, behind rsl_rl's model interface.

    The file has the normaliser inside and takes the observation groups joined in their order. No
    checkpoint contains the network: a training that is resumed reads the file again.
    """

    is_recurrent = False
    distribution = None
    """Exported files have actions alone."""

    loads_code = True
    """TorchScript is code, so a run's folder, which may come from anybody, must not name this."""

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: Mapping[str, Sequence[str]],
        obs_set: str,
        output_dim: int,
        output: int | None = None,
        **of_networks: Any,
    ) -> None:
        """Describe what the file has to fit; ``load`` reads it.

        Args:
            obs: Observations of any batch size.
            obs_groups: Observation groups by set.
            obs_set: The teacher's set, whose groups are joined in their order.
            output_dim: Number of actions A.
            output: Which output the actions are, from 0, if the file has several.
            **of_networks: Arguments of rsl_rl's models, which have no effect: with another
                ``class_name`` a config still has them.

        Raises:
            ValueError: If an argument is unknown, or a group is not a vector.
        """
        super().__init__()
        if unknown := sorted(of_networks.keys() - OF_NETWORKS):
            raise ValueError(
                f"The exported teacher has the arguments {unknown}, expected 'output' alone."
            )
        self.obs_groups = self.observed_groups = [*obs_groups[obs_set]]
        shapes = {name: [*obs[name].shape[obs.batch_dims :]] for name in self.obs_groups}
        if any(len(shape) != 1 for shape in shapes.values()):
            raise ValueError(
                f"obs_groups['{obs_set}'] is {shapes}, expected vectors with an exported teacher."
            )
        self._widths = {name: shape[0] for name, shape in shapes.items()}
        self._num_actions, self._output = output_dim, output
        self._network: tuple[Network, ...] = ()  # a tuple, so that it is no submodule

    def use(self, network: Network) -> None:
        """Use a network, whatever its form."""
        self._network = (network,)

    def load(self, path: str, obs: TensorDict) -> None:
        """Read the network and try it out.

        Args:
            path: A TorchScript file, or one of ONNX that ends in .onnx.
            obs: Observations of any batch size, on the device of the training.

        Raises:
            ValueError: If the file is missing or cannot be read, takes other observations or gives
                other actions, keeps a state, or runs for a single robot only.
        """
        joined = self._join(obs[:0])
        try:
            network = _read(path, joined.device)
            self._check(network, made_up(joined.new_empty(2, joined.shape[-1])))
        except ValueError as error:
            raise ValueError(f"The exported teacher '{path}' {error}") from error
        self.use(network)

    def _join(self, obs: TensorDict) -> torch.Tensor:
        return torch.cat([obs[name] for name in self.obs_groups], dim=-1)

    @torch.no_grad()
    def _check(self, network: nn.Module, rows: torch.Tensor) -> None:
        """Run a network on two rows, one at a time and together.

        Raises:
            ValueError: If it does not fit, keeps a state, or takes one row only.
        """
        self._check_width(network, rows)
        tensors = [*network.parameters(), *network.buffers()]
        kept = [tensor.clone() for tensor in tensors]
        alone = [self._actions(network(row), 1) for row in rows.split(1)]
        again = self._actions(network(rows[:1]), 1)
        same = all(map(torch.equal, tensors, kept))
        if not same or not torch.allclose(again, alone[0], rtol=1e-4, atol=1e-5, equal_nan=True):
            raise ValueError(
                "acts differently on the same observations, expected a network without memory:"
                " rebuild a recurrent teacher's model and name its checkpoint."
            )
        try:
            together = self._actions(network(rows), len(rows))
            # Wide, since a GPU may multiply several rows in TF32 and a single one in float32.
            fits = torch.allclose(together, torch.cat(alone), rtol=1e-2, atol=1e-2, equal_nan=True)
            reason = "rows influence each other"
        except Exception as error:  # torch and the file can raise anything
            fits, reason = False, _last_line(error)
        if not fits:
            raise ValueError(
                f"runs for one robot only ({reason}), expected any number of rows: export it with"
                " a larger batch."
            )

    def _check_width(self, network: nn.Module, rows: torch.Tensor) -> None:
        """Check that a network takes rows of this width.

        Raises:
            ValueError: If it takes another one, or none.
        """
        width, reason = rows.shape[-1], ""
        given = f"the {width} of the groups {self._widths}"
        try:
            network(rows[:1])
        except Exception as error:  # torch and the file can raise anything
            reason = _last_line(error)
        expected = network.width if isinstance(network, OnnxNetwork) else None
        # A single value may also pass by broadcasting, against a normaliser of more values.
        if expected is None and (reason or width == 1):
            expected = _width_taken(network, rows)
        if expected not in (None, width):
            raise ValueError(
                f"takes {expected} observations, expected {given}: name the groups that it was"
                " trained with, in their order, as obs_groups of the teacher."
            )
        if reason:
            raise ValueError(f"cannot run on {given}, expected one tensor of them: {reason}")

    def _actions(self, result: Any, num_rows: int) -> torch.Tensor:
        """Return the actions among the outputs of a network, shape (rows, A).

        Raises:
            ValueError: If they are of another shape, or nothing tells which output they are.
        """
        if isinstance(result, (tuple, list)):
            if self._output is None or self._output >= len(result):
                raise ValueError(
                    f"has {len(result)} outputs, expected the place of the actions among them, from"
                    f" 0, as 'output' of the teacher's config, which is {self._output}."
                )
            result = result[self._output]
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result)
        if shape != (num_rows, self._num_actions):
            raise ValueError(
                f"returns {shape}, expected actions of shape {(num_rows, self._num_actions)}: name"
                " a policy for this robot."
            )
        return result

    @torch.compiler.disable
    def forward(
        self,
        obs: TensorDict,
        masks: None = None,
        hidden_state: None = None,
        stochastic_output: bool = False,
    ) -> torch.Tensor:
        """Return the network's actions, shape (rows, A).

        Args:
            obs: Observations, batch size (rows,).
            masks: Unused: teachers are not trained.
            hidden_state: Unused.
            stochastic_output: Unused.
        """
        assert self._network, "Training loads the file before it asks for labels."
        with torch.no_grad():  # parameters in TorchScript want a gradient
            return self._actions(self._network[0](self._join(obs)), len(obs))

    def reset(self, dones: torch.Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Do nothing: there is no state. ``dones``: (N,)."""

    def get_hidden_state(self) -> HiddenState:
        """Return None: there is no state."""
        return None


def _read(path: str, device: torch.device) -> nn.Module:
    """Read a network.

    Raises:
        ValueError: If the file is missing or cannot be read.
    """
    if not Path(path).is_file():
        raise ValueError("does not exist: check the path.")
    try:
        if not path.endswith(".onnx"):
            with warnings.catch_warnings():  # newer releases of torch advise another format
                warnings.filterwarnings("ignore", message=".torch.jit")
                return torch.jit.load(path, map_location=device).eval()
        import onnx

        graph = onnx.load(path).graph
    except ModuleNotFoundError as error:
        raise ValueError(f"needs the package {error.name}: {install('tools')}") from error
    except Exception as error:  # a damaged file can raise almost anything
        raise ValueError(
            f"cannot be read ({_last_line(error)}), expected TorchScript or .onnx: for a checkpoint"
            " set the class_name of its model."
        ) from error
    return OnnxNetwork(graph).to(device)


def _width_taken(network: nn.Module, rows: torch.Tensor) -> int | None:
    """Return the number of observations that a network takes; None if nothing tells.

    It is the size of one of its constants, the fewest above 1 with which it runs.
    """
    constants = chain(network.parameters(), network.buffers())
    for width in sorted({size for constant in constants for size in constant.shape} - {0, 1}):
        try:
            network(made_up(rows.new_empty(1, width)))
        except Exception:  # torch and the file can raise anything
            continue
        return width
    return None


def _last_line(error: Exception) -> str:
    """Return the last line of an error's message: TorchScript's begin with a traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def needs_file(teacher: nn.Module) -> bool:
    """Return whether a teacher is read from a file: a checkpoint's parameters, or an export."""
    return has_parameters(teacher) or isinstance(teacher, ExportedTeacher)


def check_needs_file(teacher: nn.Module, option: str, path: str) -> None:
    """Refuse a file for a teacher that needs none.

    Raises:
        ValueError: If the teacher has no parameters.
    """
    if not needs_file(teacher):
        raise ValueError(
            f"{option} is '{path}', expected None: the teacher, {teacher}, has no parameters to"
            " load."
        )
