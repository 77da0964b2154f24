"""Images of students in mjlab: a slow camera's frames, and the ground as an image.

mjlab renders images and casts rays in separate processes.
"""

# mjlab is in a separate environment that the type checker does not see.
# pyright: reportMissingImports=false

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("mjlab", reason="mjlab has an environment of its own")

from mjlab.sensor import GridPatternCfg
from support.mjlab_result import result_of

from rsl_tbptt_tasks.mjlab.mdp import height_image

NUM_STEPS = 8
PIXELS_PER_M = 96 / 3.45
"""Scale of the camera at the cart's distance."""
CART, RAIL = 28, 30
"""First rows of the image that show them; above is only the pole."""

CAMERA = f"""
import json, torch
from mjlab.envs import ManagerBasedRlEnv
import mjlab.tasks
from mjlab.tasks.registry import load_env_cfg

cfg = load_env_cfg("Tbptt-Cartpole-Camera-Student")
cfg.scene.num_envs, cfg.seed = 6, 3
del cfg.terminations["pole_fell"]
cfg.observations["camera"].terms["depth"].params |= dict(
    noise=0.0, missing_pixels=0.0, lost_frames=0.0
)
env = ManagerBasedRlEnv(cfg, "cpu")
joints = lambda: env.scene["cartpole"].data.joint_pos.tolist()
obs, _ = env.reset()
term = env.observation_manager.get_term_cfg("camera", "depth").func
steps = [dict(frames=obs["camera"].tolist(), joints=joints())]
for _ in range({NUM_STEPS}):
    obs = env.step(torch.full((6, 1), 0.2))[0]
    steps.append(dict(frames=obs["camera"].tolist(), joints=joints()))
latency = term._latency.tolist()
json.dump(dict(steps=steps, latency=latency), open("result.json", "w"))
"""

SCAN = """
import json, torch
from dataclasses import asdict, replace
import mjlab.tasks
from mjlab.envs import ManagerBasedRlEnv
from mjlab.rl import RslRlVecEnvWrapper
from mjlab.tasks.registry import load_env_cfg, load_rl_cfg, load_runner_cls

# A plane replaces the rough ground, whose collisions take minutes to compile.
task, flat = "Tbptt-Velocity-Rough-Unitree-Go1-Scan", "Tbptt-Velocity-Flat-Unitree-Go1-Student"
cfg = load_env_cfg(f"{task}-Student")
cfg.scene.num_envs, cfg.sim = 4, load_env_cfg(flat).sim
cfg.scene.terrain = replace(cfg.scene.terrain, terrain_type="plane", terrain_generator=None)
del cfg.terminations["out_of_terrain_bounds"], cfg.curriculum["terrain_levels"]
env = RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg, "cpu"))
trained = {}
for agent in ("Teacher", "Student", "Memoryless", "Recurrent"):
    options = load_rl_cfg(f"{task}-{agent}")
    if agent in ("Student", "Memoryless"):
        options.algorithm.teacher_checkpoint = "Teacher/model_0.pt"
    runner_class = load_runner_cls(f"{task}-{agent}") or mjlab.rl.MjlabOnPolicyRunner
    runner = runner_class(env, asdict(options), agent, "cpu")
    runner.learn(1)
    policy = runner.alg.get_policy()
    moments = runner.alg.optimizer.state
    trained[agent] = dict(
        groups=[*policy.obs_groups, *getattr(policy, "obs_groups_2d", [])],
        unmoved=[
            name
            for name, parameter in policy.named_parameters()
            if parameter not in moments or not moments[parameter]["exp_avg"].any()
        ],
    )
json.dump(trained, open("result.json", "w"))
"""


@pytest.fixture(scope="module")
def rollout(tmp_path_factory):
    """Frames without noise or losses, and joint positions, of some steps."""
    return result_of(CAMERA, tmp_path_factory.mktemp("camera"))


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Changes that one iteration of each agent on the height scan makes."""
    return result_of(SCAN, tmp_path_factory.mktemp("scan"))


def test_a_frame_shows_where_the_cart_was_when_it_was_taken(rollout):
    """Every second step; a frame arrives at once or a step later, and stays until the next one."""
    frames = np.array([step["frames"] for step in rollout["steps"]])[:, :, 0]
    carts = np.array([step["joints"] for step in rollout["steps"]])[:, :, 0]
    assert set(rollout["latency"]) == {0, 1}
    for env, latency in enumerate(rollout["latency"]):
        for step in range(NUM_STEPS + 1):
            taken = (step - latency) // 2 * 2
            picture = frames[step, env]
            if taken <= 0:
                assert not picture.any()
                continue
            _, columns = picture[CART:RAIL].nonzero()
            seen = (columns.mean() + 0.5 - 48) / PIXELS_PER_M
            assert seen == pytest.approx(carts[taken, env], abs=0.03)
    assert np.abs(carts[-1] - carts[-3]).min() > 0.04  # frames of other steps would not do


def test_the_ground_is_an_image_with_forward_along_its_rows():
    grid = GridPatternCfg(size=(0.4, 0.2), resolution=0.1)
    x, y, _ = grid.generate_rays(None, "cpu")[0].T
    hits = torch.stack([x, y, 10.0 * y + x], dim=1)[None]
    frame = torch.zeros(1, 1, 3)
    data = SimpleNamespace(
        frame_pos_w=frame, hit_pos_w=hits, distances=torch.ones(1, hits.shape[1])
    )
    sensor = SimpleNamespace(
        cfg=SimpleNamespace(pattern=grid, max_distance=5.0),
        data=data,
        num_frames=1,
        num_rays_per_frame=hits.shape[1],
    )
    picture = height_image(SimpleNamespace(scene={"scan": sensor}), "scan")
    assert picture.shape == (1, 1, 3, 5)
    torch.testing.assert_close(-picture[0, 0, 1], torch.tensor([-0.2, -0.1, 0.0, 0.1, 0.2]))
    torch.testing.assert_close(-picture[0, 0, :, 2], torch.tensor([-1.0, 0.0, 1.0]))


def test_students_learn_from_the_scan_and_the_teacher_from_its_own(scans):
    assert {agent: trained["groups"] for agent, trained in scans.items()} == {
        "Teacher": ["critic"],
        "Student": ["actor", "scan"],
        "Memoryless": ["actor", "scan"],
        "Recurrent": ["actor", "scan"],
    }
    for agent, trained in scans.items():
        assert set(trained["unmoved"]) <= {"distribution.std_param"}, agent
