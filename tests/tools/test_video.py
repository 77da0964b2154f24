"""Videos: who stands where, how long a frame stays, what becomes of episodes that have ended."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from rsl_tbptt.tools.simulate.play import (
    HEADING,
    SEEN_WIDTH,
    SIZE,
    Film,
    frame,
    record,
    with_seen,
    write,
)

WIDTH, HEIGHT = SIZE
NUM_FRAMES = 6
COLOURS = {"teacher": (200, 40, 40), "student": (40, 40, 200)}


def film(title, lengths):
    """Return a film whose robots are of one colour, a little brighter with every frame."""
    images = torch.tensor(COLOURS[title], dtype=torch.uint8).expand(
        max(lengths), len(lengths), HEIGHT, WIDTH, 3
    )
    brighter = 5 * torch.arange(max(lengths), dtype=torch.uint8)
    seconds = [0.1 * length for length in lengths]
    images = images + brighter[:, None, None, None, None]
    return Film(title, images, lengths, seconds, frame_seconds=0.1)


@pytest.fixture
def films():
    return [film("teacher", [NUM_FRAMES, NUM_FRAMES]), film("student", [2, 4])]


def colour(image, column, row):
    """Return the colour in the middle of a robot's image."""
    return tuple(np.asarray(image)[HEADING + HEIGHT * row + 90, WIDTH * column + 120].tolist())


def test_a_column_is_a_policy_and_a_row_a_robot(films):
    image = frame(films, 1, NUM_FRAMES)
    assert image.size == (2 * WIDTH, HEADING + 2 * HEIGHT)
    for row in range(2):
        assert colour(image, 0, row) == (205, 45, 45)
        assert colour(image, 1, row) == (45, 45, 205)


def test_an_episode_that_ended_turns_grey_and_keeps_its_last_image(films):
    kinds = [
        [len(set(colour(frame(films, index, NUM_FRAMES), 1, row))) for index in range(NUM_FRAMES)]
        for row in range(2)
    ]
    assert kinds == [[2, 2, 1, 1, 1, 1], [2, 2, 2, 2, 1, 1]]
    assert colour(frame(films, 2, NUM_FRAMES), 1, 0) == colour(frame(films, 5, NUM_FRAMES), 1, 0)
    assert all(len(set(colour(frame(films, 5, NUM_FRAMES), 0, row))) == 2 for row in range(2))


def test_what_a_policy_sees_lies_in_the_lower_right_corner():
    robots = torch.full((2, HEIGHT, WIDTH, 3), 7, dtype=torch.uint8)
    depth = torch.zeros(2, 1, 5, 8)
    depth[0, 0, :, :4], depth[1, 0, :, 4:] = 0.5, 2.0  # left half bright, then right half
    colours = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    colours[:, 1] = 200
    seen = with_seen(robots, [depth, colours])
    height, right = round(SEEN_WIDTH * 5 / 8), WIDTH - SEEN_WIDTH
    half = SEEN_WIDTH // 2
    assert (seen[0, -height:, right : right + half] == 255).all()
    assert (seen[0, -height:, right + half :] == 0).all()
    assert (seen[1, -height:, right : right + half] == 0).all()
    assert (seen[1, -height:, right + half :] == 255).all()
    green = seen[:, -SEEN_WIDTH:, right - SEEN_WIDTH : right]
    assert green.flatten(0, 2).unique(dim=0).tolist() == [[0, 255, 0]]
    assert (seen[:, :-height, right:] == 7).all()
    assert (robots == 7).all()
    assert torch.equal(with_seen(robots, []), robots)


@pytest.mark.parametrize("name", ["video.gif", "video.webp"])
def test_a_file_plays_in_real_time_again_and_again(films, tmp_path, name):
    write(films, tmp_path / name)
    with Image.open(tmp_path / name) as image:
        assert image.n_frames == NUM_FRAMES
        assert image.info["loop"] == 0
        durations = []
        for shown in ImageSequence.Iterator(image):
            shown.load()
            durations.append(shown.info["duration"])
    assert durations == [100] * (NUM_FRAMES - 1) + [1100]


def test_another_kind_of_file_is_refused_before_anything_is_simulated(tmp_path):
    with pytest.raises(ValueError, match=r"--video is .*film\.mp4, expected a name that ends in"):
        record([], tmp_path / "film.mp4")
