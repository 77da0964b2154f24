"""Pup and its pillar: the way around the wall, placement, observations, and ends of episodes."""

import itertools
import math

import pytest

pytest.importorskip("isaaclab_tasks", reason="Isaac Lab 3.0 needs Python 3.12")

import torch
from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry
from support import mirrored_pup
from support.isaaclab_process import look_at

from rsl_tbptt_tasks.isaaclab.seeking import DETOUR, WALL_LENGTH, shortest_way

pytestmark = [
    pytest.mark.isaaclab,
    pytest.mark.long,
    pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script:DeprecationWarning"),
]

TASK = "Tbptt-Seek-Pup"
NUM_ENVS = 32
HALF = WALL_LENGTH / 2 + DETOUR
REACH = 0.45  # m
PILLAR_RADIUS, WALL_HALF_THICKNESS = 0.15, 0.03  # m
CAMERA_AHEAD = 0.14  # m
MIDDLE = slice(15, 17)  # columns
STIFFNESS = slice(37, 45)  # columns of the teacher's observations


def launch():
    return look_at(TASK, NUM_ENVS, measure, with_exact_frames)


def with_exact_frames(env_cfg):
    camera = env_cfg.observations.camera.depth.params
    camera.update(noise=0.0, missing_pixels=0.0, lost_frames=0.0, max_latency=0)
    mirrored_pup.without_sensor_faults(env_cfg)


def measure(env):
    """Return all values of the scene, the observations and the ends that the tests check."""
    idle = torch.zeros(NUM_ENVS, 8)

    def place(name, x, y=0.0, z=None, turned=(0.0, 0.0, 0.0, 1.0)):
        asset = env.scene[name]
        pose = asset.data.root_link_pose_w.torch.clone()
        pose[:, 0], pose[:, 1] = env.scene.env_origins[:, 0] + x, env.scene.env_origins[:, 1] + y
        pose[:, 2] = pose[:, 2] if z is None else z
        pose[:, 3:] = torch.nn.functional.normalize(torch.tensor(turned), dim=0)
        asset.write_root_link_pose_to_sim_index(root_pose=pose)

    def where(name):
        return (env.scene[name].data.root_link_pos_w.torch - env.scene.env_origins).clone()

    def arrange(x, *, y=0.0, pillar=(2.5, 0.0), wall=(1.2, 0.0), height=0.155, **turned):
        env.reset()
        robot = env.scene["robot"]
        robot.write_root_velocity_to_sim_index(root_velocity=torch.zeros(NUM_ENVS, 6))
        place("robot", x, y, z=height, **turned)
        place("pillar", *pillar)
        place("wall", *wall)

    def step_from(*args, steps=1, **kwargs):
        arrange(*args, **kwargs)
        for _ in range(steps):
            obs, reward, terminated, truncated, _ = env.step(idle)
            if terminated.any():
                break
        return {
            "terminated": terminated.clone(),
            "truncated": truncated.clone(),
            "reward": reward.clone(),
            "frame": obs["camera"][:, 0],
            "way": obs["teacher"][:, 9:12],
            "x": where("robot")[:, 0],
        }

    env.reset()
    places = [{name: where(name)[:, :2] for name in ("pillar", "wall")}]
    env.step(idle)
    stays = {name: where(name)[:, :2] for name in ("pillar", "wall")}
    obs, _ = env.reset()
    places.append({name: where(name)[:, :2] for name in ("pillar", "wall")})
    far = (2.5, 3.0)
    seen = {
        "places": places,
        "stays": stays,
        "groups": {name: list(group.shape[1:]) for name, group in obs.items()},
        "facing wall": step_from(0.0, pillar=far, steps=8),
        "over the wall": step_from(0.0, steps=8),
        "close to the wall": step_from(0.75, steps=8),
        "free": step_from(0.0),
        "beside the wall": step_from(1.2, y=0.9),
        "in the wall": step_from(1.1),
        "at the pillar": step_from(2.5 - REACH + 0.02),
        "near the pillar": step_from(2.5 - REACH - 0.02),
        "tipped": step_from(0.0, height=0.2, turned=(0.48, 0.0, 0.0, 1.0)),
    }

    def arrange_mirrored(side):
        place("pillar", 2.5, 0.1 * side)
        place("wall", 1.2, -0.1 * side)

    seen["mirror"] = mirrored_pup.compare(env, arrange_mirrored)
    return seen


@pytest.fixture(scope="module")
def seen(isaaclab):
    return isaaclab.call(f"{__file__}:launch")[0]


def way(start, goal, wall=(0.0, 0.0)):
    """Return the first direction of a shortest way, and its length."""
    found = shortest_way(*(torch.tensor([point]) for point in (start, goal, wall)))
    return found.direction[0].tolist(), found.length.item()


def mean(values):
    return sum(values) / len(values)


def direction(start, end):
    length = math.dist(start, end)
    return [(b - a) / length for a, b in zip(start, end, strict=True)]


@pytest.mark.parametrize(("side", "ahead"), [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0)])
def test_way_around_the_wall_turns_beyond_its_nearer_end(side, ahead):
    start, goal, corner = (-ahead, 0.1 * side), (2.0 * ahead, 0.2 * side), (0.0, HALF * side)
    towards, length = way(start, goal)
    assert towards == pytest.approx(direction(start, corner))
    assert length == pytest.approx(math.dist(start, corner) + math.dist(corner, goal))


@pytest.mark.parametrize(
    ("start", "goal"),
    [
        ((-1.0, HALF + 0.01), (2.0, HALF + 0.01)),  # past the end
        ((-1.0, 0.0), (-0.1, 0.5)),  # before the wall
        ((0.1, 0.0), (2.0, 0.0)),  # behind it
        ((0.0, 1.5), (0.0, 2.0)),  # along its line
    ],
)
def test_way_is_straight_where_the_wall_is_not_between(start, goal):
    towards, length = way(start, goal)
    assert towards == pytest.approx(direction(start, goal))
    assert length == pytest.approx(math.dist(start, goal))


def test_pillar_and_wall_have_new_places_in_every_episode_and_stay_there(seen):
    drawn = load_cfg_from_registry(TASK, "env_cfg_entry_point").events.places.params
    episodes = seen["places"]
    for name in ("pillar", "wall"):
        first, second = (places[name] for places in episodes)
        assert seen["stays"][name] == [pytest.approx(place, abs=1e-5) for place in first]
        assert all(abs(a[1] - b[1]) > 1e-4 for a, b in zip(first, second, strict=True))
    pillars, walls = ([p for places in episodes for p in places[n]] for n in ("pillar", "wall"))
    beside = [y - p[1] * x / p[0] for p, (x, y) in zip(pillars, walls, strict=True)]
    assert 0.3 < mean([offset > 0.0 for offset in beside]) < 0.7
    for values, (low, high) in (
        ([x for x, _ in pillars], drawn["pillar"][0]),
        ([y for _, y in pillars], drawn["pillar"][1]),
        ([x for x, _ in walls], drawn["wall"]),
        ([abs(offset) for offset in beside], drawn["offset"]),
    ):
        assert low - 1e-4 <= min(values) < low + 0.15 * (high - low)
        assert high - 0.15 * (high - low) < max(values) <= high + 1e-4


def test_student_gets_neither_command_nor_way(seen):
    assert seen["groups"] == {"policy": [16], "camera": [1, 24, 32], "teacher": [47]}


def rows(case):
    """Yield, for each robot, its place and the frame's middle columns, (24, 2)."""
    for x, frame in zip(case["x"], case["frame"], strict=True):
        yield x, [row[MIDDLE] for row in frame]


def nearness(distance):
    nearest, farthest = 0.2, 4.0  # m
    return pytest.approx([(farthest - distance) / (farthest - nearest)] * 2, abs=0.02)


def test_pillar_is_seen_over_the_wall_from_afar_and_not_from_close(seen):
    pillar, wall = (2.5 - PILLAR_RADIUS, 1.2 - WALL_HALF_THICKNESS)
    for x, middle in rows(seen["facing wall"]):
        assert middle[12] == nearness(wall - x - CAMERA_AHEAD)
    for x, middle in rows(seen["over the wall"]):
        assert any(row == nearness(pillar - x - CAMERA_AHEAD) for row in middle)
    for _, middle in rows(seen["close to the wall"]):
        assert min(itertools.chain(*middle)) > 0.9


def test_teacher_sees_the_direction_and_length_of_the_way(seen):
    start, corner = (0.0, 0.0), (1.2, HALF)
    x, y = direction(start, corner)
    length = math.dist(start, corner) + math.dist(corner, (2.5, 0.0))
    for cosine, sine, left in seen["free"]["way"]:
        assert (cosine, abs(sine)) == pytest.approx((x, y), abs=0.05)
        assert left == pytest.approx(length, abs=0.05)


@pytest.mark.parametrize(
    ("case", "ends", "earned"),
    [
        ("free", False, 0.0),
        ("beside the wall", False, 0.0),
        ("near the pillar", False, 0.0),
        ("at the pillar", True, 2.0),
        ("in the wall", True, -1.0),
        ("tipped", True, -1.0),
    ],
)
def test_episode_ends_at_the_pillar_in_the_wall_and_on_the_ground(seen, case, ends, earned):
    assert set(seen[case]["terminated"]) == {ends}
    assert not any(seen[case]["truncated"])
    assert seen[case]["reward"] == pytest.approx([earned] * NUM_ENVS, abs=0.1)


@pytest.mark.parametrize(("group", "moving"), [("teacher", 47 - 8), ("policy", 16)])
def test_mirror_image_is_what_a_mirrored_robot_sees(seen, group, moving):
    mirror = seen["mirror"]
    assert mirror["actions"] == mirror["expected_actions"]
    assert mirror["kept"]
    assert mirror["twice"] == 0.0
    expected, observed = (torch.tensor(mirror[n][group]) for n in ("expected", "seen"))
    if group == "teacher":  # each motor has its own stiffness
        for values in (expected, observed):
            values[:, STIFFNESS] = 0.0
    torch.testing.assert_close(observed, expected, atol=1e-3, rtol=0.0)
    assert expected.abs().amax(dim=0).gt(0.01).sum() == moving


def test_mirror_image_of_a_picture_is_what_a_mirrored_camera_sees(seen):
    expected, observed = (torch.tensor(seen["mirror"][n]["camera"]) for n in ("expected", "seen"))
    torch.testing.assert_close(observed, expected, atol=0.02, rtol=0.0)
    assert (expected - expected.flip(-1)).abs().amax(dim=(1, 2, 3)).gt(0.1).all()
