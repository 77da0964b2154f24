"""Isaac Lab 3.0: its own environments and commands; see ``Platform``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsl_tbptt.tools.platforms import NotedEnv, Trained, Training

if TYPE_CHECKING:
    import torch


TITLE = "Isaac Lab"
EXTRA = "isaaclab"
TASKS = "isaaclab.tasks"
PROGRAM = "isaaclab"
RENDERS = True
PACKAGES = ("isaaclab", "newton", "mujoco-warp", "warp-lang")
PHYSICS = "physics=newton_mjwarp"
"""The backend that runs without Isaac Sim, with or without a GPU."""
MANIFEST = "run.json"
DEFAULT_AGENT = "rsl_rl_cfg_entry_point"
"""What `isaaclab train` takes where it is given no agent."""
CAMERA = "video_camera"
"""Name of the camera in the scene."""
FOCAL_LENGTH, APERTURE = 24.0, 20.955
"""Of the camera, in mm: 47 degrees wide."""
SKY = (0.85, 0.9, 0.95)
MARGIN = {True: 1.05, False: 1.5}
"""Width of the image over the robot's, by whether it is fixed to the world: others have legs."""
DIRECTION = (0.35, -1.0, 0.4)
"""From a robot that is longer than wide to the camera: its side, from above."""
OWN_TASKS = "Tbptt-"
"""Start of the ids of this repository's tasks, which all offer that backend."""


def placement(task: str, device: str) -> list[str]:
    """Return the arguments that choose a task's physics backend and its device."""
    return [*physics(task), "--device", device, f"agent.device={device}"]


def physics(task: str) -> list[str]:
    """Return the argument that chooses the physics backend; none where a task offers no choice.

    Isaac Lab refuses the argument for a task whose config names its backend itself.
    """
    if task.startswith(OWN_TASKS):
        return [PHYSICS]
    # Imported here because it takes seconds, which this repository's own tasks do not need.
    from isaaclab.cli import load_external_tasks
    from isaaclab_tasks.utils.preset_cli import enumerate_task_presets

    load_external_tasks()
    selector, _, backend = PHYSICS.partition("=")
    presets = enumerate_task_presets(task) or {}
    offered = {
        name for target, names in presets.items() if target.value == selector for name in names
    }
    return [PHYSICS] if backend in offered else []


def trained_here(checkpoint: Path) -> bool:
    """Return whether Isaac Lab noted its training beside a checkpoint."""
    return (checkpoint.parent / MANIFEST).is_file()


def find_trained(checkpoint: Path, task: str | None = None) -> Trained:
    """Read what Isaac Lab noted; see :class:`rsl_tbptt.tools.platforms.Platform`.

    Raises:
        ValueError: If there is no note, or one of another library's training.
    """
    path = checkpoint.parent / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        library = manifest["library"]
        trained = Trained(
            task or manifest["task"], manifest.get("metadata", {}).get("agent", DEFAULT_AGENT)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"'{path}' cannot be read as Isaac Lab's note of a training ({error!r}): name a"
            " checkpoint in a log folder of `isaaclab train`."
        ) from error
    if library != "rsl_rl":
        raise ValueError(f"{path}: library is {library!r}, expected 'rsl_rl'.")
    noted = (trained.task, trained.agent)
    if not all(isinstance(name, str) for name in noted) or (task is None and ":" in trained.task):
        raise ValueError(
            f"{path}: task is {trained.task!r}, expected a registered id: the module before a"
            f" colon would be imported. If you trust it, name it, with --task {trained.task}."
        )
    return trained


def registered_agent(trained: Trained) -> Mapping[str, Any]:
    """Return the agent of Isaac Lab's registry; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    from isaaclab.cli import load_external_tasks
    from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry

    load_external_tasks()
    cfg: Any = load_cfg_from_registry(trained.task, trained.agent)
    return cfg if isinstance(cfg, dict) else cfg.to_dict()


@contextmanager
def simulated_env(
    task: str,
    *,
    num_envs: int,
    seed: int,
    device: str,
    clip_actions: float | None,
    overrides: Sequence[str],
    image_size: tuple[int, int] | None = None,
    noted: Path | None = None,
) -> Iterator[Any]:
    """Launch the simulator with a task; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    # Imported here because they load the simulator, which writing commands does not need.
    import gymnasium as gym
    from isaaclab.app import launch_simulation
    from isaaclab.cli import load_external_tasks
    from isaaclab.utils import to_dict
    from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper
    from isaaclab_tasks.utils import resolve_task_config

    load_external_tasks()
    own = [] if any(word.startswith("physics=") for word in overrides) else physics(task)
    env_cfg: Any = resolve_task_config(task, None, overrides=[*own, *overrides])[0]
    trained = None if noted is None else NotedEnv(noted)
    if trained is not None:
        default = resolve_task_config(task, None, overrides=physics(task))[0] if overrides else None
        trained.apply(env_cfg, to_dict, default)
    env_cfg.scene.num_envs = num_envs
    env_cfg.sim.device = device
    env_cfg.seed = seed
    if image_size is not None:
        setattr(env_cfg.scene, CAMERA, _camera_cfg(*image_size))
    with launch_simulation(env_cfg, {"device": device}):
        made: Any = gym.make(task, cfg=env_cfg)
        if trained is not None:
            trained.warn_of_others(env_cfg, to_dict)
        env = RslRlVecEnvWrapper(made, clip_actions=clip_actions)
        try:
            yield env
        finally:
            env.close()


def _camera_cfg(width: int, height: int) -> Any:
    """Return a camera per environment, rendered by Warp: on any device, without Isaac Sim."""
    from isaaclab.sensors import CameraCfg
    from isaaclab.sim import PinholeCameraCfg
    from isaaclab_newton.renderers import NewtonWarpRendererCfg

    return CameraCfg(
        prim_path=f"{{ENV_REGEX_NS}}/{CAMERA}",
        spawn=PinholeCameraCfg(focal_length=FOCAL_LENGTH, horizontal_aperture=APERTURE),
        width=width,
        height=height,
        background_color=SKY,
        renderer_cfg=NewtonWarpRendererCfg(enable_shadows=True),
    )


def restart(env: Any, seed: int) -> Any:
    """Start an episode everywhere; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    env.seed(seed)
    obs, _ = env.reset()
    return obs


def step_seconds(env: Any) -> float:
    """Return the duration of a step."""
    return env.unwrapped.step_dt


def renderer(env: Any) -> Callable[[], torch.Tensor]:
    """Return a function that renders the scene's first articulation.

    The camera keeps its place beside the robot's root and does not turn with it.

    Returns:
        A function to images, shape (N, height, width, 3), uint8, which the next ones overwrite.

    Raises:
        ValueError: If the scene has no articulation.
    """
    scene = env.unwrapped.scene
    if not scene.articulations:
        raise ValueError("The scene has no articulation, expected a robot to look at.")
    robot, camera = next(iter(scene.articulations.values())), scene[CAMERA]
    eye, target = _view(robot, camera.cfg.height / camera.cfg.width)

    def render() -> torch.Tensor:
        root = robot.data.root_pos_w.torch
        camera.set_world_poses_from_view(
            root + root.new_tensor(eye), root + root.new_tensor(target)
        )
        return camera.data.output["rgb"].torch

    return render


def _view(robot: Any, height_per_width: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return from where the whole robot is seen, whichever way it turns.

    Args:
        robot: An articulation as it was spawned.
        height_per_width: Of the image.

    Returns:
        The camera's place and the place that it looks at, from the robot's root, in m.
    """
    from isaaclab.sim.utils import find_first_matching_prim
    from pxr import Usd, UsdGeom

    prim = find_first_matching_prim(robot.cfg.prim_path)
    cache = UsdGeom.BBoxCache(Usd.TimeCode.Default(), [UsdGeom.Tokens.default_])
    bound: Any = cache.ComputeLocalBound(prim)
    box = bound.ComputeAlignedRange()
    length, depth, height = box.GetSize()
    centre = [a - b for a, b in zip(box.GetMidpoint(), robot.cfg.init_state.pos, strict=True)]
    slope = APERTURE / FOCAL_LENGTH  # of the image's width over the distance
    width = math.hypot(length, depth)
    distance = (
        MARGIN[robot.is_fixed_base] * max(width, height / height_per_width) / slope
        + min(length, depth) / 2
    )
    # From the side where it is longest: a cart's rail lies across the image.
    x, y, z = DIRECTION
    towards = (x, y, z) if length >= depth else (-y, x, z)
    scale = distance / math.hypot(*towards)
    return tuple(a + scale * b for a, b in zip(centre, towards, strict=True)), tuple(centre)


def task_id(task: str, agent: str) -> str:
    """Return the task itself: its agents are keys of its registration."""
    return task


def train_command(training: Training, *, device: str) -> list[str]:
    """Write `isaaclab train`; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    command = ["isaaclab", "train", "--rl_library", "rsl_rl", "--task", training.task]
    command += ["--agent", training.agent]
    if training.checkpoint is not None:
        command += ["--checkpoint", str(training.checkpoint)]
    command += ["--num_envs", str(training.num_envs)]
    command += ["--max_iterations", str(training.iterations)]
    command += ["--seed", str(training.seed), "--run_name", training.run_name]
    return [*command, *placement(training.task, device)]


def play_command(trained: Trained, checkpoint: Path, *, num_envs: int, device: str) -> list[str]:
    """Write `isaaclab play`; see :class:`rsl_tbptt.tools.platforms.Platform`."""
    command = ["isaaclab", "play", "--rl_library", "rsl_rl", "--task", trained.task]
    command += ["--agent", trained.agent, "--checkpoint", str(checkpoint)]
    return [*command, "--num_envs", str(num_envs), *placement(trained.task, device)]
