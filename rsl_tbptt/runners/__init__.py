"""rsl_rl's runners with checkpoints that survive crashes, signals and full disks; optional.

``TbpttPPO`` and ``TbpttDistillation`` work fully with the stock runners, too; Isaac Lab accepts
only those.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner

from rsl_tbptt.algorithms.base import Algorithm
from rsl_tbptt.algorithms.options import check_runner_keys
from rsl_tbptt.checkpoints.describing import plain, qualified_name, write_agent_config
from rsl_tbptt.checkpoints.reading import (
    LATEST,
    NUMBERED,
    checkpoint_file,
    numbered_checkpoints,
    read_checkpoint,
)
from rsl_tbptt.checkpoints.writing import (
    KeptCheckpoints,
    NotWrittenError,
    check_kept,
    check_writable,
    save_checkpoint,
)
from rsl_tbptt.compat import MODELS_ERA, require_era
from rsl_tbptt.compat.versions import join_on_cpu, world_size
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.models.protocol import check_rnn_types
from rsl_tbptt.runners import resume
from rsl_tbptt.signals import STOPPED, StopSignals

require_era(MODELS_ERA, "rsl_tbptt.runners")

__all__ = ["STOPPED", "TbpttDistillationRunner", "TbpttOnPolicyRunner"]

OWN = "rsl_tbptt_runner"
"""Key of a checkpoint with the entries of this package's runners; rsl_rl ignores it."""


class TbpttOnPolicyRunner(OnPolicyRunner):
    """rsl_rl's runner with checkpoints that are complete, limited in number, and run no code.

    The run folder is checked before anything is built. Files are written completely or not at all,
    and reading them runs no code. The key ``keep_last`` of ``train_cfg`` is the number of newest
    checkpoints to keep; None or absent keeps all. Files that another process wrote, such as the one
    that this training resumes, are never deleted.

    Several ranks train on GPUs as with rsl_rl, and on a CPU by gloo.

    :meth:`learn` writes the config into ``params/agent.yaml`` at its start. SIGTERM, SIGUSR1 and
    Ctrl+C end it between two iterations, after a checkpoint.
    """

    alg: Any
    """The runner's algorithm."""

    num_iterations: int = 0
    """Number of finished iterations, including those before a resume."""

    def __init__(
        self, env: Any, train_cfg: dict, log_dir: str | None = None, device: str = "cpu"
    ) -> None:
        """Check everything that needs no runner, then build it. Arguments: see rsl_rl's runners.

        Raises:
            ValueError: If ``log_dir`` cannot be written, ``keep_last`` is not valid, or a key is
                mistyped.
        """
        check_runner_keys(train_cfg)
        check_rnn_types(train_cfg)
        check_kept(train_cfg)
        self._given_cfg = plain(train_cfg, other=qualified_name)  # rsl_rl removes entries from it
        self._kept: KeptCheckpoints | None = None
        if log_dir is not None:
            check_writable(log_dir)
            if (keep_last := train_cfg.get("keep_last")) is not None:
                self._kept = KeptCheckpoints(keep_last)
        # A copy, since the algorithm turns off "check_for_nan" in it.
        super().__init__(env, dict(train_cfg), log_dir, device)
        self._log = self.logger.log
        self.logger.log = cast("Any", self._conclude_iteration)
        self._ranks = Ranks(together=self.is_distributed)
        self._resumed: dict[str, Any] | None = None
        self._num_saved = self._end = 0
        self._is_in_own_folder = self._broke_off = False

    def _configure_multi_gpu(self) -> None:
        """Join the other ranks: on a CPU by gloo, on GPUs as rsl_rl does."""
        if torch.device(self.device).type == "cpu" and world_size() > 1:
            join_on_cpu(self)
        else:
            super()._configure_multi_gpu()

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Train as rsl_rl's runner does; a signal ends the training after a checkpoint.

        After a resume it continues with the earlier random numbers. If the environment has
        ``state_dict`` and ``load_state_dict``, it also continues with its episodes and the models'
        hidden states, bit for bit as without the interruption; but not with a replay buffer without
        ``save_buffer``, or if ``get_observations`` draws random numbers. All of these belong to a
        rank: several ranks start new episodes.

        The numbering of iterations continues; rsl_rl would use the number of the last iteration
        twice. ``num_iterations`` of them are done, so you finish a training of 1000 by
        ``learn(1000 - runner.num_iterations)``.

        Args:
            num_learning_iterations: Number of more iterations; nothing is done at 0 or below.
            init_at_random_ep_len: Whether episodes start as if they had run for some time.

        Raises:
            SystemExit: After SIGTERM or SIGUSR1, with status ``STOPPED``. Without ``log_dir``, and
                so without a checkpoint, the status is a shell's for that signal, 143 or 138.
            KeyboardInterrupt: After Ctrl+C.
            ValueError: If ranks have loaded checkpoints of different iterations; or if ``log_dir``
                has checkpoints and none of them was loaded.
            Exception: Any other error that ended the training, after a checkpoint of its progress.
        """
        with StopSignals() as self._signals:
            self._signals.saves = self._check_same_start()
            if num_learning_iterations <= 0:
                return
            if self._signals.saves and self.gpu_global_rank == 0:
                write_agent_config(self._given_cfg, Path(self.logger.log_dir or ""))
            self._num_saved = self.current_learning_iteration = self.num_iterations
            self._end = self.num_iterations + num_learning_iterations
            try:
                # Not in `load`: if you play a policy, its random numbers and steps are your own.
                goes_on = resume.restore(self, self._resumed)
                self._resumed = None
                super().learn(num_learning_iterations, init_at_random_ep_len and not goes_on)
                self._signals.end_if_asked(self._ranks, self.device, lambda: None)
            except Exception as error:
                self._save_after(error)
                raise
            finally:
                self.current_learning_iteration = max(self.num_iterations - 1, 0)
                self._end = self.num_iterations

    def _conclude_iteration(
        self, it: int, start_it: int, *args: Any, loss_dict: dict[str, float], **values: Any
    ) -> None:
        """Log an iteration in the logger's place, and end the training if a signal asks for it.

        rsl_rl's loop then saves, on the first rank only, if a checkpoint is due. Metrics that are
        no losses are written but not printed.
        """
        self.num_iterations, losses = it + 1, dict(loss_dict)
        if isinstance(self.alg, Algorithm):
            for name in losses.keys() - self.alg.loss_names:
                value = losses.pop(name)
                if self.logger.writer is not None:
                    self.logger.writer.add_scalar(f"Loss/{name}", value, it)
        # The logger's time is that of all its iterations, including those before a resume.
        steps = self.cfg["num_steps_per_env"] * self.env.num_envs * self.gpu_world_size
        start_it = it - self.logger.tot_timesteps // steps
        self._log(it, start_it, *args, loss_dict=losses, **values)
        self._signals.end_if_asked(self._ranks, self.device, self._save_and_stop)

    def _check_same_start(self) -> bool:
        """Check that all ranks start with the same iteration, and in a folder of this run.

        Returns:
            Whether the first rank, which writes, has a folder.

        Raises:
            ValueError: On all ranks, if they do not.
        """
        folder = self.logger.log_dir
        others = []
        if folder is not None and not self._is_in_own_folder:
            others = [path.name for path in numbered_checkpoints(Path(folder))]
        of_ranks = self._ranks.gather((self.num_iterations, folder is not None, others))
        iterations = [iteration for iteration, *_ in of_ranks]
        if len(set(iterations)) > 1:
            raise ValueError(
                f"num_iterations is {iterations} on the ranks, expected the same on all: have them"
                " load the same checkpoint, in a folder that all of them see."
            )
        _, has_folder, others = of_ranks[0]
        if others:
            raise ValueError(
                f"log_dir is '{folder}', expected a folder without checkpoints: a new training"
                f" would replace or delete those of an earlier one, such as {others[0]}. To go on"
                f" call load('{Path(folder or '', LATEST)}') first, else name another folder."
            )
        self._is_in_own_folder = True
        return has_folder

    def _save_and_stop(self) -> None:
        """Save after the iteration that a signal made the last one; all ranks call it."""
        self._end = self.num_iterations  # no save comes after this one
        self._save_numbered()
        if self.logger.writer is not None:
            self.logger.stop_logging_writer()

    def _save_numbered(self) -> None:
        if self.logger.writer is not None:  # on the first rank
            name = f"model_{self.current_learning_iteration}.pt"
            self.save(str(Path(self.logger.log_dir or "", name)))

    def _save_after(self, error: Exception) -> None:
        """Save the progress before an error, if no file has it: models are as after an update.

        Episodes, hidden states and random numbers are not, so they start anew after a resume.
        """
        if isinstance(error, NotWrittenError) or self.num_iterations == self._num_saved:
            return
        self._broke_off, self._end = True, self.num_iterations
        try:
            if hasattr(self.alg, "transaction"):
                self.alg.transaction.drop_rollout()  # undoes RND's changes, too
            self._save_numbered()
        except Exception as second:  # a broken device, a full disk: the first error matters more
            warnings.warn(
                f"After a {type(error).__name__} no checkpoint of the last iteration could be"
                f" written either ({' '.join(str(second).split())}): go on from the newest existing"
                " one.",
                stacklevel=3,
            )
        finally:
            self._broke_off = False

    def save(self, path: str, infos: dict | None = None) -> None:
        """Save models and training state; ``path`` is complete or unchanged at any time.

        Args:
            path: Checkpoint file.
            infos: More values to keep in it: tensors and plain values.

        Raises:
            ValueError: If ``infos`` or the environment's state has other values, which could not be
                loaded.
            NotWrittenError: If it cannot be written. During training only the last checkpoint
                raises; for others a warning names the file and training continues.
        """
        iteration = self.current_learning_iteration
        checkpoint = {
            **self.alg.save(),
            "iter": iteration,
            "infos": resume.readable(infos, "infos"),
            OWN: {
                "num_iterations": self.num_iterations,
                # If no training has continued since a file was loaded, its state is kept.
                "resume": self._resumed or resume.state_of(self, self._broke_off),
            },
        }
        try:
            save_checkpoint(checkpoint, path)
        except NotWrittenError as error:
            if self.num_iterations >= self._end:
                raise
            warnings.warn(
                f"{error} Older checkpoints are unchanged; training goes on and tries again when"
                " the next one is due.",
                stacklevel=2,
            )
            return
        self.logger.save_model(path, iteration)
        if _is_in(self.logger.log_dir, path) and NUMBERED.fullmatch(Path(path).name):
            self._num_saved = self.num_iterations
            if self._kept is not None:
                self._kept.add(Path(path))

    def load(
        self,
        path: str,
        load_cfg: dict | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> dict:
        """Load models and training state; only tensors and plain values are read from the file.

        Args:
            path: Checkpoint file; or a run's folder, or ``FOLDER/latest``, for its newest valid
                checkpoint.
            load_cfg: Parts to load, or None for everything in the checkpoint.
            strict: Whether parameters must match exactly.
            map_location: Device of the loaded tensors; None means the runner's.

        Returns:
            The values kept by ``save`` as ``infos``.

        Raises:
            ValueError: If the file is missing or damaged, or does not fit the models. Nothing is
                changed then.
        """
        path = str(checkpoint_file(path))
        self.alg.checkpoint_path = path
        checkpoint = read_checkpoint(path, map_location or self.device)
        if missing := {"iter", "infos"} - checkpoint.keys():
            raise ValueError(
                f"The checkpoint '{path}' lacks {sorted(missing)}, it holds {[*checkpoint]}:"
                " expected a file that a runner's save() wrote."
            )
        if self.alg.load(checkpoint, load_cfg, strict):
            self.current_learning_iteration = checkpoint["iter"]
            own = checkpoint.get(OWN, {})
            self.num_iterations = own.get("num_iterations", checkpoint["iter"] + 1)
            self._is_in_own_folder = _is_in(self.logger.log_dir, path)
            # Earlier versions kept the states of several ranks, the first one's first.
            self._resumed = own.get("resume") or next(iter(own.get("resume_of_ranks", ())), None)
        return checkpoint["infos"]


class TbpttDistillationRunner(DistillationRunner, TbpttOnPolicyRunner):
    """rsl_rl's distillation runner with the checkpoints of :class:`TbpttOnPolicyRunner`."""


def _is_in(folder: str | None, path: str) -> bool:
    return Path(path).parent.resolve() == Path(folder or "").resolve()
