"""Checkpoints that are never half written and never run code, for rsl_rl's runners."""

from typing import TYPE_CHECKING, Any

from rsl_tbptt.checkpoints.reading import read_checkpoint
from rsl_tbptt.checkpoints.writing import check_writable, save_checkpoint

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
