"""Depth frames of the cartpole from pixels, on either platform: what a slow, late camera shows."""

import numpy as np
import pytest

PIXELS_PER_M = 96 / 3.45
"""Scale of the camera at the cart's distance."""


def check_frames(frames, carts, latencies, period, rows):
    """Check that each frame shows where the cart was when it was taken.

    Args:
        frames: Frames from the first observation on, exact. Shape: (T, N, 40, 96).
        carts: The carts' positions then, in m. Shape: (T, N).
        latencies: Steps from taking a frame to seeing it, all below ``period``. Shape: (N,).
        period: Steps between two frames, of which the first is at step 0 and shows nothing.
        rows: Rows of a frame that show the cart; above is only the pole, below the rail.
    """
    frames, carts = np.array(frames), np.array(carts)
    assert set(latencies) == {0, 1}
    for env, latency in enumerate(latencies):
        for step, picture in enumerate(frames[:, env]):
            taken = (step - latency) // period * period
            if taken <= 0:
                assert not picture.any()
                continue
            _, columns = picture[rows].nonzero()
            seen = (columns.mean() + 0.5 - 48) / PIXELS_PER_M
            assert seen == pytest.approx(carts[taken, env], abs=0.03)
    moved = np.abs(carts[-1] - carts[-1 - period])
    assert moved.min() > 0.04  # frames of other steps would not do
