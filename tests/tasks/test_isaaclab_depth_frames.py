"""Depth frames as a slow, late and imperfect camera delivers them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")

from isaaclab.managers import ObservationTermCfg, SceneEntityCfg

from rsl_tbptt_tasks.isaaclab.cameras import DepthFrames

NUM_ENVS, HEIGHT, WIDTH = 4, 5, 7
EXACT = {"noise": 0.0, "missing_pixels": 0.0, "lost_frames": 0.0}


class Camera:
    """Shows a wall that comes one centimetre nearer in every step, and counts its images."""

    cfg = SimpleNamespace(height=HEIGHT, width=WIDTH)

    def __init__(self, env):
        self.env, self.rendered = env, 0
        self.data = SimpleNamespace(output=self)

    def __getitem__(self, name):
        assert name == "depth"
        self.rendered += 1
        distance = 3.0 - 0.01 * self.env.common_step_counter
        depth = torch.full((NUM_ENVS, HEIGHT, WIDTH, 1), distance)
        depth[:, 0] = 0.0  # rays that hit nothing, in Warp's form
        depth[:, 1] = torch.inf  # and in that of others
        return SimpleNamespace(torch=depth)


def nearness(step):
    return (4.0 - (3.0 - 0.01 * step)) / 2.0


@pytest.fixture
def env():
    env = SimpleNamespace(num_envs=NUM_ENVS, device="cpu", common_step_counter=0)
    env.episode_length_buf = torch.zeros(NUM_ENVS, dtype=torch.long)
    env.camera = Camera(env)
    env.scene = SimpleNamespace(sensors={"camera": env.camera})
    return env


class Frames:
    """Steps the environment and returns the frames."""

    def __init__(self, env, **changes):
        params = {"sensor_cfg": SceneEntityCfg("camera"), "distances": (2.0, 4.0)}
        params |= {"period": 3, "max_latency": 0} | EXACT | changes
        self.params: dict[str, Any] = params
        func: Any = DepthFrames
        self.term = DepthFrames(ObservationTermCfg(func=func, params=self.params), env)
        self.term.reset()
        self.env = env

    def __call__(self, reset=()):
        self.env.common_step_counter += 1
        self.env.episode_length_buf += 1
        if len(reset):
            self.env.episode_length_buf[reset] = 0
            self.term.reset(reset)
        return self.term(self.env, **self.params).clone()


def wall(seen):
    """Return the wall's nearness in each environment; the first two rows show nothing."""
    assert seen.shape == (NUM_ENVS, 1, HEIGHT, WIDTH)
    assert not seen[:, :, :2].any()
    return seen[:, 0, 2:].flatten(1).mean(1)


def test_environments_see_the_newest_frame_of_their_episode_that_has_arrived(env):
    torch.manual_seed(0)
    step, starts, latencies = Frames(env, max_latency=2), [0] * NUM_ENVS, set()
    for now in range(1, 100):
        reset = (torch.rand(NUM_ENVS) < 0.1).nonzero()[:, 0].tolist()
        with torch.inference_mode(now % 7 < 5):  # a rollout, then what follows it
            seen = wall(step(reset)).tolist()
            again = wall(step.term(env, **step.params)).tolist()  # after final observations
        for row in range(NUM_ENVS):
            starts[row] = now if row in reset else starts[row]
            latency = int(step.term._latency[row])
            arrived = range(starts[row] + 1, now - latency + 1)  # none is taken at the start
            taken = [step for step in arrived if step % 3 == 0]
            latencies.add(latency)
            assert seen[row] == again[row] == pytest.approx(nearness(taken[-1]) if taken else 0)
    assert latencies == {0, 1, 2}
    assert env.camera.rendered == 33  # only when a frame is taken


def test_frames_get_lost_and_pixels_are_missing_and_noisy(env):
    torch.manual_seed(0)
    step = Frames(env, period=1, lost_frames=0.3, missing_pixels=0.1, noise=0.05)
    step.term._held[:] = 0.5
    new, missing, spread, before = [], [], [], None
    for _ in range(300):
        env.common_step_counter = 0  # the wall stays where it is
        step.term._last_step = -1
        seen = step()[:, 0, 2:]
        if before is not None:
            new.append((seen != before).flatten(1).any(1))
        missing.append(seen == 0.0)
        spread.append(seen[seen > 0.0])
        before = seen
    assert torch.stack(new).float().mean() == pytest.approx(0.7, abs=0.03)
    assert torch.stack(missing).float().mean() == pytest.approx(0.1, abs=0.01)
    distances = 4.0 - 2.0 * torch.cat(spread)
    assert distances.std() == pytest.approx(0.05 * 2.99, rel=0.1)


def test_a_frame_may_not_outlast_the_next_ones_taking(env):
    with pytest.raises(ValueError, match="max_latency is 3, expected 0 to 2"):
        Frames(env, max_latency=3)
