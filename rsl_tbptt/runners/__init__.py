"""Checkpoints that survive what ends a training, for rsl_rl's runners."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rsl_rl.runners import DistillationRunner, OnPolicyRunner

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
    FailedSaves,
    NotWrittenError,
    check_kept,
    check_writable,
    kept_checkpoints,
    save_checkpoint,
)
from rsl_tbptt.compat.versions import join_on_cpu, world_size
from rsl_tbptt.core.distributed import Ranks
from rsl_tbptt.runners import resume
from rsl_tbptt.runners.rank_watch import RankWatch, heartbeat_timeout
from rsl_tbptt.signals import STOPPED, StopSignals

if TYPE_CHECKING:
    from rsl_rl.runners import OnPolicyRunner as Runner
else:
    Runner = object  # whichever runner it is mixed with
OWN = "rsl_tbptt_runner"
"""What a runner of this package adds to a checkpoint; rsl_rl ignores it."""


class SafeCheckpoints(Runner):
    """Mix-in for rsl_rl's runners: checkpoints that are whole, few, found again and never code.

    The run folder is checked before anything is built. Files are written whole or not at all, and
    reading them runs no code. Of ``train_cfg`` it reads

    - ``keep_last``: number of newest checkpoints to keep. None or absent keeps all. Files that no
      runner of this package wrote into the run's folder are never deleted.
    - ``keep_best``: whether the checkpoint of the highest mean return in training, over the last
      100 episodes before it was written, is kept beside them. It counts once there are as many and
      each environment has ended an episode.
    - ``heartbeat_timeout_s``: seconds (default 20) without a sign of life after which a rank counts
      as dead, which ends all ranks. A rank that ends by an error ends them at once.

    Several ranks train on GPUs as rsl_rl's do, and on a CPU by gloo; when one fails all end.

    The config is written into ``params/agent.yaml`` when :meth:`learn` begins.

    SIGTERM, SIGUSR1 and Ctrl+C end :meth:`learn` between two iterations, after a checkpoint.
    """

    alg: Any
    """The runner's algorithm."""

    num_iterations: int = 0
    """Iterations that are done, those before a resume included."""

    def __init__(
        self,
        env: Any,
        train_cfg: dict,
        log_dir: str | None = None,
        device: str = "cpu",
    ) -> None:
        """Check what needs no runner, then build it. Arguments: see rsl_rl's runners.

        Raises:
            ValueError: If ``log_dir`` cannot be written, what is to be kept is not valid, or a key
                is mistyped.
        """
        check_runner_keys(train_cfg)
        check_kept(train_cfg)
        self._heartbeat_timeout_s = heartbeat_timeout(train_cfg)
        self._given_cfg = plain(train_cfg, other=qualified_name)  # rsl_rl takes entries out of it
        if log_dir is not None:
            check_writable(log_dir)
        super().__init__(env, train_cfg, log_dir, device)
        if (health_log := getattr(self.alg, "health_log", None)) is not None:
            health_log.write = self._write_health
        self._kept = kept_checkpoints(train_cfg, log_dir)
        self._ranks = Ranks(together=self.is_distributed)
        self._watch = self._new_watch()
        self._resumed: list[dict[str, Any]] = []
        self._of_other_ranks: list[dict[str, Any]] | None = None
        self._failed = FailedSaves()
        self._num_saved = self._end = 0
        self._episodes_since = 0
        self._is_in_own_folder = self._broke_off = False

    def _configure_multi_gpu(self) -> None:
        """Join the other ranks: on a CPU by gloo, on GPUs as rsl_rl does."""
        if torch.device(self.device).type == "cpu" and world_size() > 1:
            join_on_cpu(self)
        else:
            super()._configure_multi_gpu()

    def _write_health(self, metrics: Mapping[str, float]) -> None:
        """Log what an update reports of health, and print none of it."""
        if (writer := getattr(self.logger, "writer", None)) is not None:
            for name, value in metrics.items():
                writer.add_scalar(f"Loss/{name}", value, self.num_iterations)

    def _new_watch(self) -> RankWatch:
        """Return what lets a training end on all ranks."""
        ranks = self.gpu_global_rank, self.gpu_world_size
        return RankWatch(*ranks, self._heartbeat_timeout_s)

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Learn as rsl_rl's runner does, and end after a checkpoint if a signal asks for that.

        After a resume it goes on with the random numbers of before, and where the environment has
        ``state_dict`` and ``load_state_dict`` with its episodes and the models' hidden states, to
        the bit as if it had not been interrupted. All of these belong to a rank: with another
        number of ranks they begin anew.

        Iterations are numbered on: rsl_rl would give the first one after a resume the number of
        the last one before. ``num_iterations`` of them are done, so a training of 1000 goes on by
        ``learn(1000 - runner.num_iterations)``.

        Args:
            num_learning_iterations: Further iterations. None are left to do at 0 or below.
            init_at_random_ep_len: Whether episodes begin as if they had run for some time.

        Raises:
            SystemExit: After SIGTERM or SIGUSR1, with status ``STOPPED``; without ``log_dir``, and
                so without a checkpoint, with a shell's for that signal, 143 or 138.
            KeyboardInterrupt: After Ctrl+C.
            ValueError: If ranks have loaded checkpoints of different iterations; or if ``log_dir``
                holds checkpoints and none of them was loaded.
            RuntimeError: If another rank has ended; names it and why.
            Exception: What ended the training otherwise, after a checkpoint of what was done.
        """
        self._watch = self._new_watch()
        with StopSignals() as signals, self._watch:
            signals.saves = has_folder = self._check_same_start()
            if num_learning_iterations > 0:
                if has_folder and self.gpu_global_rank == 0:
                    write_agent_config(self._given_cfg, Path(self.logger.log_dir or ""))
                self._end = self.num_iterations + num_learning_iterations
                self._learn_until_end(init_at_random_ep_len, signals, has_folder)

    def _learn_until_end(
        self, init_at_random_ep_len: bool, signals: StopSignals, has_folder: bool
    ) -> None:
        """Learn until ``_end`` iterations are done; see :meth:`learn`."""
        start = self.current_learning_iteration = self._num_saved = self.num_iterations

        def begin_rollout() -> None:
            let_it_fail(self.logger.writer)
            with torch.inference_mode(False):  # the runner's rollout has no gradients
                self._end_if_asked(signals, needs_saving=self.num_iterations > start)

        def end_update() -> None:
            is_saved = self.num_iterations % self.cfg["save_interval"] == 0
            self.num_iterations += 1
            if has_folder and (is_saved or self.num_iterations == self._end):
                self._of_other_ranks = resume.of_other_ranks(self, self._ranks)

        # Here and not in load: one who plays draws and steps as he likes.
        goes_on = resume.restore(self, self._resumed)
        if self._resumed and not goes_on:
            self._episodes_since = start
        self._resumed = []
        try:
            with watched(self.alg, self._watch.check, begin_rollout, end_update):
                super().learn(self._end - start, init_at_random_ep_len and not goes_on)
                self._end_if_asked(signals, needs_saving=False)
        except Exception as error:
            self._save_after(error)
            raise
        finally:
            self._of_other_ranks = None
            self.current_learning_iteration = max(self.num_iterations - 1, 0)
            self._end = self.num_iterations

    def _check_same_start(self) -> bool:
        """Check that all ranks begin with the same iteration, and in a folder of this run.

        Returns:
            Whether the first rank, which writes, has a folder.

        Raises:
            ValueError: If not, on all ranks.
        """
        folder = self.logger.log_dir
        others = None if self._is_in_own_folder else _newest_in(folder)
        of_ranks = self._ranks.gather((self.num_iterations, folder is not None, others))
        iterations = [iteration for iteration, *_ in of_ranks]
        if len(set(iterations)) > 1:
            raise ValueError(
                f"num_iterations is {iterations} on the ranks, expected the same on all: have them"
                " load the same checkpoint, in a folder that all of them see."
            )
        _, has_folder, others = of_ranks[0]
        if others is not None:
            raise ValueError(
                f"log_dir is '{folder}', expected a folder without checkpoints: a new training"
                f" would replace or delete those of an earlier one, such as {others}. To go on with"
                f" it call load('{Path(folder or '', LATEST)}') first, else name another folder."
            )
        self._is_in_own_folder = True
        return has_folder

    def _end_if_asked(self, signals: StopSignals, needs_saving: bool) -> None:
        """End the training on all ranks where one has received a signal.

        Raises:
            SystemExit: If so; KeyboardInterrupt if that was Ctrl+C.
        """
        if not self._ranks.sum_count(int(signals.received is not None), self.device):
            return
        if needs_saving:
            self._of_other_ranks = resume.of_other_ranks(self, self._ranks)
        # Together: a launcher ends all ranks when one has ended, also the one that still writes.
        self._ranks.run_together(lambda: self._save_last() if needs_saving else None)
        self._watch.in_order = True
        if self.logger.writer is not None:
            self.logger.stop_logging_writer()
        raise signals.end()

    def _save_last(self) -> None:
        """Save where the writing rank is this one.

        Raises:
            NotWrittenError: If the file cannot be written, which then ends all ranks.
        """
        if self.logger.writer is None:
            return
        self._end = self.num_iterations  # none comes after this one
        path = Path(self.logger.log_dir or "", f"model_{self.current_learning_iteration}.pt")
        self.save(str(path))

    def _save_after(self, error: Exception) -> None:
        """Save what was done before an error, if no file has it: models are as after an update.

        Episodes, hidden states and random numbers are not, so they begin anew after a resume.
        """
        if isinstance(error, NotWrittenError) or self.num_iterations == self._num_saved:
            return
        self.current_learning_iteration = self.num_iterations - 1
        self._broke_off = True
        if self.alg.storage.step and hasattr(self.alg, "transaction"):  # what it did to RND, too
            self.alg.transaction.on_drop()
        try:
            with torch.inference_mode(False):
                self._save_last()
        except Exception as second:  # a broken device, a full disk: the first error is the news
            warnings.warn(
                f"After a {type(error).__name__} no checkpoint of the last iteration could be"
                f" written either ({' '.join(str(second).split())}): go on from the newest one"
                " there is.",
                stacklevel=3,
            )
        finally:
            self._broke_off = False

    def save(self, path: str, infos: dict | None = None) -> None:
        """Save models and training state so that ``path`` is either whole or as before.

        Args:
            path: Checkpoint file.
            infos: Further values to keep in it.

        Raises:
            NotWrittenError: If it cannot be written; in a training only the last one, others are
                named in a warning and training goes on.
        """
        iteration = self.current_learning_iteration
        own: dict[str, Any] = {
            "num_iterations": self.num_iterations,
            "episodes_since": self._episodes_since,
        }
        if self._broke_off or not self.is_distributed:
            own["resume"] = resume.state_of(self, self._broke_off)
        elif self._of_other_ranks is not None:  # one who saves at another time knows his own alone
            own["resume_of_ranks"] = [resume.state_of(self), *self._of_other_ranks]
        checkpoint = {**self.alg.save(), "iter": iteration, "infos": infos, OWN: own}
        with self._failed.passed_over(again=self.num_iterations < self._end):
            with self._watch.writing:
                save_checkpoint(checkpoint, path)
            self.logger.save_model(path, iteration)
            self._note(Path(path), iteration)

    def _note(self, path: Path, iteration: int) -> None:
        """Note a file that was written, if it is one of the run's."""
        if not self._is_of_run(path):
            return
        self._num_saved = self.num_iterations
        if self._kept is not None:
            self._kept.add(path, iteration, self._mean_return())

    def _mean_return(self) -> float | None:
        """Return the mean return of the newest episodes, None where these are not typical yet.

        The shortest episodes end first: until each environment has ended one, and the window is
        full, they are a selection, which is better than the policy where each step costs.
        """
        returns, lengths = self.logger.rewbuffer, self.logger.cur_episode_length
        num_steps = (self.num_iterations - self._episodes_since) * self.cfg["num_steps_per_env"]
        if len(returns) < (returns.maxlen or 0) or bool((lengths >= num_steps).any()):
            return None
        return statistics.mean(returns)

    def _is_of_run(self, path: Path) -> bool:
        """Return whether a file is one of the run's numbered checkpoints."""
        return self._is_in_folder(path) and bool(NUMBERED.fullmatch(path.name))

    def _is_in_folder(self, path: Path) -> bool:
        return path.parent.resolve() == Path(self.logger.log_dir or "").resolve()

    def load(
        self,
        path: str,
        load_cfg: dict | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> dict:
        """Load models and training state; only tensors and plain values are read from the file.

        Args:
            path: Checkpoint file; or a run's folder, or ``FOLDER/latest``, for the newest in it
                that is valid.
            load_cfg: What to load, or None for what the checkpoint holds.
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
        if self.alg.load(checkpoint, load_cfg, strict):
            self.current_learning_iteration = checkpoint["iter"]
            own = checkpoint.get(OWN, {})
            self.num_iterations = own.get("num_iterations", checkpoint["iter"] + 1)
            self._is_in_own_folder = self._is_in_folder(Path(path))
            alone = [own["resume"]] if "resume" in own else []
            self._resumed = own.get("resume_of_ranks", alone)
            began = own.get("episodes_since", 0) if self._resumed else self.num_iterations
            self._episodes_since = began
        return checkpoint["infos"]


def _newest_in(folder: str | None) -> str | None:
    """Return the name of the newest checkpoint in a run's folder, None where there is none."""
    found = [] if folder is None else numbered_checkpoints(Path(folder))
    return found[0].name if found else None


@contextmanager
def watched(
    algorithm: Any,
    before_act: Callable[[], None],
    begin_rollout: Callable[[], None],
    end_update: Callable[[], None],
) -> Iterator[None]:
    """Call something before each action and the first one of each rollout, and after each update.

    rsl_rl's ``learn`` is one loop without a place for it between two iterations.

    Args:
        algorithm: An algorithm of rsl_rl's or of this package, watched while the context lasts.
        before_act: Called before each action.
        begin_rollout: Called when an iteration begins; the one before is logged and saved.
        end_update: Called when an update has ended.
    """
    act, update = algorithm.act, algorithm.update

    def watched_act(obs: Any) -> torch.Tensor:
        before_act()
        if algorithm.storage.step == 0:
            begin_rollout()
        return act(obs)

    def watched_update() -> dict[str, float]:
        metrics = update()
        end_update()
        return metrics

    vars(algorithm).update(act=watched_act, update=watched_update)  # hide the class's methods
    try:
        yield
    finally:
        del vars(algorithm)["act"], vars(algorithm)["update"]


RETRY_SECONDS = 60.0
"""After a failure nothing is written for so long; a new file is begun then."""


def let_it_fail(writer: Any) -> None:
    """Have a writer warn where it cannot write, and go on with another file later.

    Its own thread writes, and ends with the first error, which each later call raises. Curves have
    a gap then, or end.

    Args:
        writer: The logger's; nothing is done if it is none of TensorBoard's, or was here before.
    """
    if not hasattr(writer, "file_writer") or "add_scalar" in vars(writer):
        return
    add_scalar, again_at, warned = writer.add_scalar, 0.0, False

    def tolerant(*args: Any, **kwargs: Any) -> None:
        nonlocal again_at, warned
        if time.monotonic() < again_at:
            return
        try:
            add_scalar(*args, **kwargs)
        except OSError as error:
            again_at = time.monotonic() + RETRY_SECONDS
            writer.file_writer = None  # its thread has ended
            if not warned:
                warned = True
                warnings.warn(
                    f"TensorBoard's file in '{writer.log_dir}' cannot be written"
                    f" ({error.strerror or error}): free some space there. Metrics are missing"
                    " until then; training goes on.",
                    stacklevel=3,
                )

    vars(writer)["add_scalar"] = tolerant


class TbpttDistillationRunner(SafeCheckpoints, DistillationRunner):
    """A DistillationRunner whose checkpoints survive; see :class:`SafeCheckpoints`.

    ``TbpttDistillation`` does its whole work under the stock runner too; Isaac Lab accepts only
    that one.
    """


class TbpttOnPolicyRunner(SafeCheckpoints, OnPolicyRunner):
    """An OnPolicyRunner whose checkpoints survive; see :class:`SafeCheckpoints`.

    ``TbpttPPO`` does its whole work under the stock runner too; Isaac Lab accepts only that one.
    """


__all__ = ["STOPPED", "TbpttDistillationRunner", "TbpttOnPolicyRunner"]
