"""Checkpoints that are never half written and never run code."""

import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rsl_tbptt.checkpoints.reading import read_checkpoint


def save_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write ``checkpoint`` to a temporary file beside ``path`` and rename it into place.

    A crash, a full disk or a kill leaves the previous file as it was. As with a plain ``open``, a
    new file has the mode that the umask leaves, an old one keeps its own, and a link stays.

    Args:
        checkpoint: What ``torch.save`` accepts.
        path: Target file or a link to it; its folder is created.

    Raises:
        ValueError: If the folder cannot be written.
    """
    path = Path(path).resolve()  # the target of a link
    check_writable(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # mkstemp's have mode 0600
    try:
        with temporary.open("xb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Create ``folder`` if it is missing and check that files can be written there.

    Raises:
        ValueError: If they cannot.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"The run folder '{folder}' cannot be written ({error.strerror}): choose another folder"
            " or change its permissions."
        ) from error


if TYPE_CHECKING:
    from rsl_rl.runners import OnPolicyRunner as Runner
else:
    Runner = object  # whichever runner it is mixed with


class SafeCheckpoints(Runner):
    """Mix-in for rsl_rl's runners: a writable run folder, atomic saves, loads without code."""

    alg: Any
    """The runner's algorithm."""

    def __init__(
        self,
        env: Any,
        train_cfg: dict,
        log_dir: str | None = None,
        device: str = "cpu",
    ) -> None:
        """Check ``log_dir`` before the runner builds anything. Arguments: see rsl_rl's runners."""
        if log_dir is not None:
            check_writable(log_dir)
        super().__init__(env, train_cfg, log_dir, device)

    def save(self, path: str, infos: dict | None = None) -> None:
        """Save models and training state so that ``path`` is either whole or as before.

        Args:
            path: Checkpoint file.
            infos: Further values to keep in it.
        """
        checkpoint = {**self.alg.save(), "iter": self.current_learning_iteration, "infos": infos}
        save_checkpoint(checkpoint, path)
        self.logger.save_model(path, self.current_learning_iteration)

    def load(
        self,
        path: str,
        load_cfg: dict | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> dict:
        """Load models and training state; only tensors and plain values are read from the file.

        Args:
            path: Checkpoint file.
            load_cfg: What to load, or None for what the checkpoint holds.
            strict: Whether parameters must match exactly.
            map_location: Device of the loaded tensors; None means the runner's.

        Returns:
            The values kept by ``save`` as ``infos``.

        Raises:
            ValueError: If the file is missing or damaged, or does not fit the models. Nothing is
                changed then.
        """
        self.alg.checkpoint_path = path
        checkpoint = read_checkpoint(path, map_location or self.device)
        if self.alg.load(checkpoint, load_cfg, strict):
            self.current_learning_iteration = checkpoint["iter"]
        return checkpoint["infos"]
