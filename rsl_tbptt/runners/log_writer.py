"""TensorBoard's writer, which would end a training when the disk is full."""

from __future__ import annotations

import time
import warnings
from typing import Any

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
