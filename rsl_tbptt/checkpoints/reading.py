"""Reading rsl_rl checkpoints: safely, and with errors that name the key and the fix."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def read_checkpoint(path: str, device: torch.device | str) -> dict[str, Any]:
    """Read a checkpoint without running any code it may contain.

    Args:
        path: File written by a runner's ``save``.
        device: Device of the tensors.

    Returns:
        The saved dictionary.

    Raises:
        ValueError: If the file is missing, damaged, of another kind, or holds more than tensors and
            plain values.
    """
    import torch  # not at the top: finding a checkpoint's file has to be quick

    if not Path(path).is_file():
        raise ValueError(f"The checkpoint '{path}' does not exist: check the path.")
    try:
        _check_sums(path)
        checkpoint = torch.load(path, weights_only=True, map_location=device)
    except Exception as error:  # a damaged file can raise almost anything
        raise ValueError(
            f"The checkpoint '{path}' cannot be read, it {_what_is_wrong(path, error)}"
        ) from error
    if not isinstance(checkpoint, dict):
        raise ValueError(
            f"The checkpoint '{path}' holds a {type(checkpoint).__name__}, not a dict."
        )
    return checkpoint


def student_state_dict(checkpoint: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    """Return the parameters of a distillation's student, in their trained shapes.

    Raises:
        ValueError: If ``checkpoint`` has none.
    """
    if not checkpoint.get("student_state_dict"):
        raise ValueError(
            f"The checkpoint has no 'student_state_dict', only {sorted(checkpoint)}: expected one"
            " of a distillation. Name the student's file, not its teacher's."
        )
    return checkpoint["student_state_dict"]


def check_matches(model: nn.Module, state_dict: Mapping[str, torch.Tensor], role: str) -> None:
    """Check that ``state_dict`` fits ``model`` exactly, before anything is changed.

    Args:
        model: The model to load into.
        state_dict: Parameters and buffers by name.
        role: "teacher" or "student", for the message.

    Raises:
        ValueError: If a key is missing, unexpected or of another shape; it names the first such key
            and the setting to change.
    """
    from rsl_tbptt.compat.versions import config_advice

    expected = model.state_dict()
    last_layer = [key for key in expected if key.startswith("mlp.")][-2:]  # its weight and bias
    outputs = {*last_layer, *(key for key in expected if key.startswith("distribution."))}
    for key in state_dict:
        if key not in expected:
            raise ValueError(
                f"The checkpoint holds '{key}', which the {role} lacks:"
                f" {config_advice(key, role, True)}"
            )
    for key, tensor in expected.items():
        if key not in state_dict:
            raise ValueError(
                f"The checkpoint lacks '{key}' of the {role}: {config_advice(key, role, False)}"
            )
        if state_dict[key].shape != tensor.shape:
            if key in outputs and state_dict[key].shape[1:] == tensor.shape[1:]:
                raise ValueError(
                    f"The {role} has {len(state_dict[key])} outputs in the checkpoint ('{key}'),"
                    f" expected {len(tensor)}: it was trained for another number of actions, or"
                    " with another 'distribution_cfg'. Name the checkpoint of a policy for this"
                    " robot."
                )
            raise ValueError(
                f"'{key}' has shape {tuple(state_dict[key].shape)} in the checkpoint, expected"
                f" {tuple(tensor.shape)} for the {role}: give the {role} the layer sizes and"
                f" observation groups it was trained with."
            )


def _check_sums(path: str) -> None:
    """Compare a file with the checksums in it; torch writes them but does not check them.

    Raises:
        ValueError: If a checksum differs.
    """
    if not zipfile.is_zipfile(path):
        return  # written by torch before 1.6, or not a checkpoint
    with zipfile.ZipFile(path) as archive:
        if not any(entry.CRC for entry in archive.infolist()):
            return  # torch.serialization.set_crc32_options(False)
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of '{damaged}' in it differs.")


EXPORTED = (
    "is an exported policy: name the model_<iteration>.pt that it was exported from. For a"
    " teacher see examples/exported_teacher.py of rsl_tbptt."
)
"""What is wrong with a file of TorchScript or ONNX, in a message."""


def _what_is_wrong(path: str, error: Exception) -> str:
    """Say what a file is that could not be loaded, and what to do."""
    import torch

    if isinstance(error, OSError):
        return f"cannot be opened: {error.strerror}."
    if path.endswith(".onnx"):
        return EXPORTED
    with open(path, "rb") as file:
        start = file.read(2)
    if start not in (b"", b"PK", b"\x80\x02"):  # a zip archive, or a pickle of torch before 1.6
        return "is no checkpoint: name a model_<iteration>.pt of the run."
    with suppress(Exception):  # of a damaged file
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                return EXPORTED
        if names := torch.serialization.get_unsafe_globals_in_checkpoint(path):
            return (
                f"holds {', '.join(sorted(names))}, expected tensors and plain values, which run no"
                " code: save it again without them, a number of numpy as float(number)."
            )
    return f"is damaged: {_first_sentence(error)} Use another checkpoint of the run."


def _first_sentence(error: Exception) -> str:
    """Return an error's first sentence: torch's messages then advise you to run the file's code."""
    sentence = re.split(r"(?<=[.!?])\s", str(error).strip(), maxsplit=1)[0]
    return f"{sentence.removesuffix('.') or type(error).__name__}."


LATEST = "latest"
"""As a file's name: the newest valid checkpoint of that folder."""

NUMBERED = re.compile(r"(?:model|safe)_(\d+)\.pt")
"""Names of checkpoints with their iteration: a runner's, and an algorithm's emergency saves."""


def checkpoint_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of a checkpoint that a user names.

    Args:
        path: A file; or a run's folder, or ``FOLDER/latest``, for its newest valid checkpoint.

    Returns:
        The file. A file that is named directly is not checked.

    Raises:
        ValueError: If a folder has no valid checkpoint.
    """
    path = Path(path)
    if path.is_dir():
        return latest_checkpoint(path)
    if path.name == LATEST and not path.exists():
        return latest_checkpoint(path.parent)
    return path


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path:
    """Find the checkpoint of the highest iteration that can be loaded.

    Iterations are taken from names, since times do not survive a copy; of two files of one
    iteration the one written last comes first. Each file is read completely, without running its
    code; a warning names each damaged file, which is skipped. A training may write and delete files
    meanwhile.

    Args:
        folder: A run's folder with ``model_<iteration>.pt`` or ``safe_<iteration>.pt``.

    Returns:
        The file.

    Raises:
        ValueError: If the folder is missing or has no valid checkpoint.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"The run folder '{folder}' does not exist: check the path.")
    found = numbered_checkpoints(folder)
    for path in found:
        if _is_valid(path):
            return path
        if not path.exists():  # deleted meanwhile, by a process that has written a newer one
            return latest_checkpoint(folder)
    raise ValueError(
        f"The run folder '{folder}' holds no valid checkpoint, expected model_<iteration>.pt"
        f" ({len(found)} of that form cannot be loaded): name another run or file."
    )


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Return a folder's checkpoints of any iteration, valid or not, the newest first."""
    found = []
    for path in folder.iterdir():
        if match := NUMBERED.fullmatch(path.name):
            with suppress(FileNotFoundError):  # deleted meanwhile
                found.append((int(match[1]), path.stat().st_mtime_ns, path))
    return [path for _, _, path in sorted(found, reverse=True)]


def _is_valid(path: Path) -> bool:
    """Return whether a checkpoint can be loaded and has the entries that every runner writes.

    It warns if not, unless the file has been deleted.
    """
    try:
        checkpoint = read_checkpoint(str(path), "cpu")
    except ValueError as error:
        reason = str(error)
    else:
        models = [key for key in checkpoint if key.endswith("state_dict") and checkpoint[key]]
        if models and isinstance(checkpoint.get("iter"), int):
            return True
        reason = (
            f"'{path}' holds {sorted(checkpoint)}, expected 'iter' and the parameters of models."
        )
    if path.exists():
        warnings.warn(f"Passed over a checkpoint. {reason}", stacklevel=3)
    return False
