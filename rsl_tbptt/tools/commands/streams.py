"""Standard output and error whose readers may go away: the command goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class Stream:
    """A stream that discards what is written once writing to it has failed."""

    def __init__(self, stream: Any, forgiven: type[OSError]) -> None:
        """Take a stream.

        Args:
            stream: The stream.
            forgiven: Errors of writing that are no errors of the command.
        """
        self._stream, self._forgiven = stream, forgiven

    def write(self, text: str) -> int:
        """Write a text."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        """Send all that follows, and what is buffered, nowhere; else it fails again at exit.

        Raises:
            OSError: If the error is not forgiven.
        """
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if not isinstance(error, self._forgiven):
            raise OSError(error.errno, error.strerror, self._stream.name) from error

    def __getattr__(self, name: str) -> Any:
        """Return everything else as it is."""
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Keep a command alive that nobody reads: a closed stream, or one whose reader has ended.

    Only standard output raises other errors, such as that of a full disk: what it should take is
    the result.
    """
    streams = sys.stdout, sys.stderr
    with ExitStack() as stack:
        out, err = (
            # For a closed one, which is None: no other file may get its number.
            stream or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            for stream in streams
        )
        sys.stdout, sys.stderr = Stream(out, BrokenPipeError), Stream(err, OSError)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
