"""Ranks that end together: each shows that it lives, and hears why another one ended.

::

    rank 0   . . . . . hears of rank 1, raises "Rank 1 of 3 ended: ValueError: ..."
    rank 1   . . . ValueError: tells it, waits until all have heard, and ends
    rank 2   . . . . . the same

    rank 0   . . . . . . . . . no beat of rank 1 for some time: tells that, and ends
    rank 1   . . . killed

A dot is a beat. A thread of each rank does it, over a store of its own connection: it also works
while the rank waits for others in an exchange, or in a simulator.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch import distributed

from rsl_tbptt.algorithms.options import more_than
from rsl_tbptt.signals import write_error

HEARTBEAT_TIMEOUT_S = 20.0
"""Default of ``heartbeat_timeout_s``: with the seconds of grace all ranks end within 30."""

BEAT_S = 0.5
"""Seconds between two beats."""

MISSED_AFTER_BREAK = 4
"""Beats after which a rank is dead once an exchange has broken: some rank has ended then."""

GRACE_S = 5.0
"""Seconds that a rank has to end by itself, and for which a broken exchange waits for a reason."""

HEARD_S = 3.0
"""Seconds that a rank waits at most until all others know why they end."""

NUM_WATCHED = 8
"""Ranks that each rank watches: the next ones, so that the store is not asked R * R times."""

LEFT = 1 << 40
"""Added to the beats of a rank that left the training in order."""


class RankWatch:
    """Context of a training that ends on all ranks when it fails on one."""

    failure: str | None = None
    """Which rank ended and why, once this one knows; the first one's, where several did."""

    in_order: bool = False
    """Set where all ranks have agreed to end, by whatever exception."""

    _number = 0
    """Trainings of this process so far: all ranks begin equally many."""

    def __init__(self, rank: int, num_ranks: int, heartbeat_timeout_s: float) -> None:
        """Watch nothing yet; one rank alone never does.

        Args:
            rank: This rank, of the default process group.
            num_ranks: R, their number.
            heartbeat_timeout_s: Seconds without a beat after which a rank counts as dead.
        """
        self._rank, self._num_ranks = rank, num_ranks
        self._max_missed = round(heartbeat_timeout_s / BEAT_S)
        self._watched = [(rank + i) % num_ranks for i in range(1, min(num_ranks, NUM_WATCHED + 1))]
        self._broken = False
        self._ended, self._heard = threading.Event(), threading.Event()
        self._beats, self._missed = [0] * num_ranks, [0] * num_ranks
        self._taking = threading.Lock()
        self.writing = threading.Lock()
        """Held while a file is written, which is not cut off then."""

    def __enter__(self) -> RankWatch:
        """Begin to beat."""
        if self._num_ranks > 1:
            RankWatch._number += 1
            self._store = _connect(RankWatch._number)
            self._store.add(f"beats/{self._rank}", 1)
            self._thread = threading.Thread(target=self._run, name="rank_watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Leave, or end with the other ranks.

        Raises:
            RuntimeError: If an exchange broke since another rank ended; names it and why.
        """
        if self._num_ranks == 1:
            return
        try:
            if error is not None and not self.in_order:
                self._end_for(error)
        finally:
            self._ended.set()
            self._thread.join(GRACE_S)
            with suppress(RuntimeError):  # the store can be gone already
                self._store.add(f"beats/{self._rank}", LEFT)

    def check(self) -> None:
        """End where another rank has ended.

        Raises:
            RuntimeError: If so; names it and why.
        """
        if self.failure is not None:
            raise RuntimeError(self.failure)

    def _end_for(self, error: BaseException) -> None:
        """Tell the other ranks of an error of this one, or raise what another one told.

        Raises:
            RuntimeError: If it is not this rank's.
        """
        if _is_of_exchange(error):
            self._broken = True
            self._heard.wait(GRACE_S)
        is_other_ranks = _is_of_exchange(error) and self.failure is not None
        with suppress(RuntimeError):  # the store can be gone
            if self.failure is None:
                reason = f"{type(error).__name__}: {error}"
                self._tell(f"Rank {self._rank} of {self._num_ranks} ended: {reason}", [])
            if isinstance(error, Exception):  # Ctrl+C waits for nothing
                self._wait_until_heard()
        if is_other_ranks:
            raise RuntimeError(self.failure) from error

    def _tell(self, failure: str, silent_ranks: list[int]) -> None:
        """Leave word for all ranks but the silent ones, unless another rank has been faster."""
        told = self._store.compare_set("failure", "", failure).decode()
        if told == failure:
            self._store.add("heard", len(silent_ranks))
        self._take(told)

    def _take(self, failure: str) -> None:
        """Take note of why all ranks end."""
        with self._taking:
            if self.failure is not None:
                return
            self.failure = failure
        # At once: a launcher ends this process when another one has ended.
        write_error(f"\n[rank {self._rank}] {failure}\n")
        self._heard.set()
        with suppress(RuntimeError):
            self._store.add("heard", 1)

    def _wait_until_heard(self) -> None:
        """Stay: the store may end with this process."""
        deadline = time.monotonic() + HEARD_S
        while self._store.add("heard", 0) < self._num_ranks and time.monotonic() < deadline:
            time.sleep(0.05)

    def _run(self) -> None:
        """Beat and listen; end this process where it does not end by itself."""
        try:
            while self.failure is None and not self._ended.wait(BEAT_S):
                self._store.add(f"beats/{self._rank}", 1)
                self._listen()
        except RuntimeError:  # the connection to the store
            if not self._ended.wait(BEAT_S):  # or the training has just ended everywhere
                self._take(f"{_holder_of_store(self._num_ranks)} ended, and its store with it.")
        if self.failure is None or self._ended.wait(GRACE_S):
            return
        with self.writing:
            write_error(f"[rank {self._rank}] waits in vain, and ends too.\n")
            os._exit(1)

    def _listen(self) -> None:
        """Hear what was told, and who is silent."""
        if self._store.check(["failure"]):
            self._take(self._store.get("failure").decode())
            return
        for rank in self._watched:
            beats = self._store.add(f"beats/{rank}", 0)
            # One that has not begun may still start its simulator, unless an exchange has broken.
            silent = beats == self._beats[rank] and beats < LEFT and (beats > 0 or self._broken)
            self._missed[rank] = self._missed[rank] + 1 if silent else 0
            self._beats[rank] = beats
        most = MISSED_AFTER_BREAK if self._broken else self._max_missed
        silent_ranks = [rank for rank, missed in enumerate(self._missed) if missed >= most]
        if silent_ranks:
            first = silent_ranks[0]
            failure = (
                f"Rank {first} of {self._num_ranks} ended without a word: it was killed, or stands"
                f" still; no beat for {self._missed[first] * BEAT_S:g} s."
            )
            self._tell(failure, silent_ranks)


def heartbeat_timeout(train_cfg: Mapping[str, Any]) -> float:
    """Return ``heartbeat_timeout_s`` of a runner's config.

    Raises:
        ValueError: If it is not valid.
    """
    name = "heartbeat_timeout_s"
    seconds = train_cfg.get(name, HEARTBEAT_TIMEOUT_S)
    least = MISSED_AFTER_BREAK * BEAT_S
    more_than(least, hint=" seconds, in which a rank that lives shows it several times")(
        name, seconds
    )
    return float(seconds)


def _connect(number: int) -> Any:
    """Return a store that all ranks share, of its own connection, for their training ``number``."""
    store = distributed.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
    )
    # torchrun keeps its store when it starts all ranks again.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"rsl_tbptt/{attempt}/{number}", store)


def _holder_of_store(num_ranks: int) -> str:
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return "torchrun" if agents else f"Rank 0 of {num_ranks}"


def _is_of_exchange(error: BaseException) -> bool:
    """Return whether an exchange with other ranks failed, of which gloo has no type of its own."""
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)
    )
