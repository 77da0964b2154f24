"""Film policies without a screen.

A video has one column per policy and one row per robot. Images that a policy sees lie in the lower
right corner of its robot's. Every policy meets the same robots and starts, since the environments
have the same seed. Isaac Lab and mjlab trace rays on any device, without OpenGL; EnvPool needs it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from rsl_tbptt.files import complete, output_path

if TYPE_CHECKING:
    from PIL import Image
    from tensordict import TensorDict

SIZE = (240, 180)
"""Width and height of a robot's image, in pixels."""
SEEN_WIDTH = 96
"""Largest width of an image that a policy sees, in pixels."""
OVERSAMPLING = 2
"""Rays per pixel in each direction: edges are smooth, thin poles are not torn."""
FRAMES_PER_SECOND = 15
LAST_SECONDS = 1.0
"""How long the last frame stays."""
HEADING = 24
"""Height of the titles, in pixels."""
MARK = b"rsl-tbptt play"
"""Bytes in every video."""
OPTIONS: dict[str, dict[str, Any]] = {
    ".gif": {"comment": MARK},
    ".webp": {"quality": 60, "method": 4, "xmp": MARK},
}
"""Options of Pillow by the kind of file."""
STARTED = re.compile(r"^\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_")
"""The time in front of a run's name in its log folder."""


@dataclass(frozen=True)
class Film:
    """Images of a policy's robots."""

    title: str
    images: torch.Tensor
    """Shape (T, N, height, width, 3), uint8."""
    lengths: list[int]
    """Frames of each robot's first episode."""
    seconds: list[float]
    """Duration of each robot's first episode, as far as it was filmed."""
    frame_seconds: float


def record(policies: Sequence[Any], output: Path, *, seconds: float = 10.0, **options: Any) -> None:
    """Film policies and write one file.

    Args:
        policies: Runs and bundles, all of tasks with the same duration of a step; see
            :class:`rsl_tbptt.tools.simulate.evaluate.Start`.
        output: GIF or WebP file; an earlier video is replaced.
        seconds: Time after which longer episodes are cut.
        options: ``num_envs``, the number of robots, and where they are; see
            :func:`rsl_tbptt.tools.simulate.evaluate.started`.

    Raises:
        ValueError: If the file cannot be of its kind, a policy's platform renders nothing, or
            something is wrong with a policy or its task.
    """
    if output.suffix.lower() not in OPTIONS:
        raise ValueError(f"--video is {output}, expected a name that ends in one of {[*OPTIONS]}.")
    if not seconds > 0:
        raise ValueError(f"--seconds is {seconds}, expected above 0.")
    for policy in policies:
        if policy.platform.TASKS is None:
            raise ValueError(
                f"{policy.checkpoint} was trained by {policy.platform.TITLE}, which renders no"
                " robots, expected a checkpoint of Isaac Lab, mjlab or EnvPool."
            )
    output = output_path(output, Path("video.gif"), MARK)
    write([film(policy, seconds, **options) for policy in policies], output)


@torch.inference_mode()
def film(run: Any, seconds: float, **options: Any) -> Film:
    """Film the first episodes of a policy; see :func:`record`.

    Raises:
        ValueError: If nothing tells how long a step of the task lasts.
    """
    from rsl_tbptt.tools.simulate.evaluate import run_first_episodes, started

    width, height = (OVERSAMPLING * pixels for pixels in SIZE)
    with started(run, image_size=(width, height), **options) as start:
        step_seconds = run.platform.step_seconds(start.env)
        if step_seconds is None:
            raise ValueError(f"step_dt of {start.task} is None, expected the seconds of a step.")
        stride = max(1, round(1 / FRAMES_PER_SECOND / step_seconds))
        render, images = run.platform.renderer(start.env), []
        groups = getattr(start.policy, "obs_groups_2d", ())

        def watch(step: int, obs: TensorDict) -> None:
            if step % stride == 0:
                seen = [obs[group] for group in groups]
                images.append(with_seen(smoothed(render()), seen).cpu())

        max_steps = max(1, round(seconds / step_seconds))
        _, steps, _ = run_first_episodes(
            start.env, start.policy, start.obs, watch=watch, max_steps=max_steps
        )
    return Film(
        title=STARTED.sub("", run.checkpoint.resolve().parent.name),
        images=torch.stack(images),
        lengths=[-(-length // stride) for length in steps.tolist()],
        seconds=[length * step_seconds for length in steps.tolist()],
        frame_seconds=stride * step_seconds,
    )


def smoothed(images: torch.Tensor) -> torch.Tensor:
    """Average the rays of each pixel.

    Args:
        images: Shape (N, height, width, 3), uint8.

    Returns:
        Images, smaller by :data:`OVERSAMPLING`, uint8.
    """
    pixels = images.permute(0, 3, 1, 2).float()
    small = functional.avg_pool2d(pixels, OVERSAMPLING)
    return small.round().byte().permute(0, 2, 3, 1)


def with_seen(robots: torch.Tensor, seen: Sequence[torch.Tensor]) -> torch.Tensor:
    """Overlay the policy's camera images on the lower right of each robot's frame.

    Args:
        robots: Shape (N, height, width, 3), uint8.
        seen: Images of each camera, the first three or the only one of their channels from dark to
            bright. Shape (N, C, H, W) each.

    Returns:
        Images like those of the robots, side by side from the right.
    """
    robots, height, right = robots.clone(), *robots.shape[1:3]
    width = min(SEEN_WIDTH, right // max(len(seen), 1))
    for picture in seen:
        colours = picture[:, : 3 if picture.shape[1] >= 3 else 1].float()
        low, high = (
            limit(colours, dim=(1, 2, 3), keepdim=True) for limit in (torch.amin, torch.amax)
        )
        scale = min(height / picture.shape[2], width / picture.shape[3])
        rows, columns = (max(1, round(side * scale)) for side in picture.shape[2:])
        bright = (colours - low) / (high - low).clamp(min=1e-6)
        bright = functional.interpolate(bright, (rows, columns))
        pixels = (255 * bright).round().byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
        robots[:, -rows:, right - columns : right] = pixels
        right -= columns
    return robots


def write(films: Sequence[Film], output: Path) -> None:
    """Put films side by side, in real time, and write them as one file that repeats.

    Args:
        films: One for each column, all of as many robots.
        output: GIF or WebP file.
    """
    num_frames = max(len(one.images) for one in films)
    frames = [frame(films, index, num_frames) for index in range(num_frames)]
    durations = [round(1000 * films[0].frame_seconds)] * num_frames
    durations[-1] += round(1000 * LAST_SECONDS)
    with complete(output) as unfinished:
        frames[0].save(
            unfinished,
            format=output.suffix[1:].upper(),
            save_all=True,
            append_images=frames[1:],
            duration=durations,
            loop=0,
            **OPTIONS[output.suffix.lower()],
        )


def frame(films: Sequence[Film], index: int, num_frames: int) -> Image.Image:
    """Draw a frame: titles, robots, seconds; grey where a robot's episode has ended.

    Args:
        films: One for each column.
        index: Number of the frame.
        num_frames: Frames of the longest film.

    Returns:
        The image.
    """
    from PIL import Image, ImageDraw, ImageFont

    (width, height), rows = SIZE, len(films[0].lengths)
    image = Image.new("RGB", (width * len(films), HEADING + height * rows), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    for column, one in enumerate(films):
        middle = (width * column + width // 2, HEADING // 2)
        draw.text(middle, one.title, "black", font, anchor="mm")
        for row, length in enumerate(one.lengths):
            ended = index >= length and length < num_frames
            shown = min(index, length - 1)
            robot = Image.fromarray(one.images[shown, row].numpy())
            text = f"{shown * one.frame_seconds:.1f} s"
            if ended:
                robot = robot.convert("L").convert("RGB")
                text = f"ended after {one.seconds[row]:.1f} s"
            corner = (width * column, HEADING + height * row)
            image.paste(robot, corner)
            draw.text((corner[0] + 6, corner[1] + 4), text, "black", font)
    return image
